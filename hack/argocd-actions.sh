#!/usr/bin/env bash
# Joins the scripts of the actions of each kind into the one text that Argo CD's ConfigMap wants.
set -euo pipefail
cd "$(dirname "$0")/../config/argocd"

indented() { sed "s/^./$1&/" "$2"; }

rm -rf actions
mkdir actions
for kind in resource_customizations/external-backend.io/*/actions; do
	{
		echo "# Written by make manifests from $kind."
		echo 'discovery.lua: |'
		indented '  ' "$kind/discovery.lua"
		echo 'definitions:'
		for script in "$kind"/*/action.lua; do
			printf -- '- name: %s\n  action.lua: |\n' "$(basename "$(dirname "$script")")"
			indented '    ' "$script"
		done
	} >"actions/$(basename "$(dirname "$kind")").yaml"
done
