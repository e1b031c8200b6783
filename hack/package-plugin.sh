#!/usr/bin/env bash
# package-plugin.sh BINARY ARCHIVE packs the kubectl plugin BINARY and the license into ARCHIVE, a .tar.gz. The same
# binary gives the same bytes.
set -euo pipefail
binary=$1 archive=$2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$binary" "$(dirname "$0")/../LICENSE" "$work"
chmod 755 "$work/$(basename "$binary")"
tar --create --directory "$work" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mtime=@0 \
	--mode=u=rwX,go=rX LICENSE "$(basename "$binary")" | gzip -n -9 >"$archive"
