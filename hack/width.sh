#!/usr/bin/env bash
# Fails where a line of a comment is wider than 100 columns, or one of Markdown wider than 120. The linter lll holds
# code to 120. Exempt are generated files and lines that can't be broken: markers, directives, tables, code blocks, links.
set -euo pipefail
cd "$(dirname "$0")/.."

git ls-files -z --cached --others --exclude-standard '*.go' '*.md' ':!:*zz_generated*' ':!:*/applyconfiguration/*' |
	LC_ALL=C xargs -0 awk '
	FNR == 1 { block = 0; markdown = FILENAME ~ /\.md$/ }
	{ text = $0; gsub(/[\200-\277]/, "", text); width = length(text); sub(/^[ \t]+/, "", text) }
	markdown && text ~ /^```/ { block = !block }
	markdown && (block || text ~ /^\|/ || text ~ /^[-*[(<]*https?:[^ ]*$/) { next }
	!markdown && (text !~ /^\/\// || text ~ /^\/\/ ?\+/ || text ~ /^\/\/(go:|nolint|https?:)/) { next }
	width > (markdown ? 120 : 100) { printf "%s:%d: %d columns\n", FILENAME, FNR, width; wide = 1 }
	END { exit wide }'
