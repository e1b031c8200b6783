#!/usr/bin/env bash
# package-chart.sh VERSION IMAGE DIRECTORY packs the Helm chart into DIRECTORY. The chart gets VERSION as its version
# and appVersion, and installs IMAGE. The same files and arguments give the same bytes.
set -euo pipefail
version=$1 image=$2 out=$3
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "$0")/.."

name=external-backend-operator
# Helm wants a semantic version. A version that has no v is a commit.
case $version in
v*) chart=${version#v} ;;
*) chart=0.0.0-g$version ;;
esac
# The chart's own default is the tag VERSION.
repository=${image%:*} tag=${image##*:}
[[ $tag == "$version" ]] && tag=

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "charts/$name" "$work"
sed -i "s|^version: .*|version: \"$chart\"|; s|^appVersion: .*|appVersion: \"$version\"|" "$work/$name/Chart.yaml"
sed -i "s|^  repository: .*|  repository: $repository|; s|^  tag: .*|  tag: \"$tag\"|" "$work/$name/values.yaml"

rm -f "$out/$name"-*.tgz
tar --create --directory "$work" --sort=name --format=gnu --owner=0 --group=0 --numeric-owner --mtime=@0 \
	--mode=u=rwX,go=rX "$name" | gzip -n -9 >"$out/$name-$chart.tgz"
