#!/bin/sh
# Installs the named Debian packages, by default those that the development cluster needs, if they are missing. It
# prints nothing if none is missing. Without root, or on a system unlike Debian, it fails and names them.
set -eu

if [ $# -eq 0 ]; then
	set -- iproute2 iptables nftables util-linux
fi

# A tool without its package is fine, too. nft and ip may not be in an ordinary user's PATH.
PATH=$PATH:/usr/sbin:/sbin
present() {
	case $1 in
	chromium | gcc | haproxy | iptables | nginx | redis-server) command -v "$1" ;;
	iproute2) command -v ip ;;
	libc6-dev) [ -e /usr/include/stdlib.h ] ;;
	nftables) command -v nft ;;
	util-linux) command -v nsenter ;;
	*) dpkg-query --show --showformat '${db:Status-Status}' "$1" 2>/dev/null | grep -qx installed ;;
	esac >/dev/null
}

missing=
for package; do
	present "$package" || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
	echo "missing packages (Debian's names):$missing" >&2
	echo "install them, or run this as root on Debian" >&2
	exit 1
fi
echo "installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
# What is installed for a test is not to run as this machine's service.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
	trap 'rm -f $policy' EXIT
	trap 'exit 1' HUP INT TERM
	printf '#!/bin/sh\nexit 101\n' >$policy
	chmod +x $policy
fi
apt-get update -qq
# shellcheck disable=SC2086 # a list
apt-get install -qq -y --no-install-recommends $missing >/dev/null
