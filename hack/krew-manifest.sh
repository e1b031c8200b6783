#!/usr/bin/env bash
# krew-manifest.sh VERSION DIRECTORY prints the manifest by which krew installs the kubectl plugin of release VERSION. It
# lists the archives kubectl-external_backend_OS_ARCH.tar.gz in DIRECTORY.
set -euo pipefail
version=$1 directory=$2
# krew wants a semantic version with a v. A version that has no v is a commit.
case $version in
v*) release=$version ;;
*) release=v0.0.0-g$version ;;
esac

cat <<END
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: external-backend
spec:
  version: "$release"
  homepage: https://github.com/external-backend/operator
  shortDescription: See, explain and move the traffic of ExternalBackends
  description: |
    Shows where the traffic of an ExternalBackend of the External Backend Operator goes, and why: tiers, targets, names,
    slices, policies and overrides. It pins tiers, and drains or disables targets, for a time. It acts with your own
    credentials.
  platforms:
END
for archive in "$directory"/kubectl-external_backend_*.tar.gz; do
	name=$(basename "$archive" .tar.gz)
	IFS=_ read -r os arch <<<"${name#kubectl-external_backend_}"
	suffix=
	[[ $os == windows ]] && suffix=.exe
	cat <<END
  - selector:
      matchLabels:
        os: $os
        arch: $arch
    uri: https://github.com/external-backend/operator/releases/download/$version/$name.tar.gz
    sha256: $(sha256sum "$archive" | cut -d' ' -f1)
    bin: kubectl-external_backend$suffix
END
done
