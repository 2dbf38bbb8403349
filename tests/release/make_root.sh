#!/bin/sh
# Makes a clean Debian for the test of the Debian package: `make_root.sh FOLDER PYTHON`, as root, with debootstrap.
# The version of Debian is the one that has the version of that Python.
set -eu
folder=$1 python=$2
[ ! -e "$folder/complete" ] || exit 0
command -v debootstrap >/dev/null || {
    echo "debootstrap is missing. On Debian and Ubuntu: sudo apt-get install debootstrap" >&2
    exit 1
}
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $version in
    3.11) suite=bookworm ;;
    3.13) suite=trixie ;;
    *)
        echo "There is no package for a Debian with Python $version. Use Python 3.11 or 3.13." >&2
        exit 1
        ;;
esac
umask 022
rm -rf "$folder"
mkdir -p "$folder"
echo "Making a clean Debian ($suite). This takes a minute or two, once."
debootstrap --variant=minbase --include=adduser,bubblewrap,ca-certificates,python3,systemd,systemd-sysv \
    "$suite" "$folder" >"$folder.log" 2>&1 || { tail -n 3 "$folder.log" >&2; exit 1; }
touch "$folder/complete"
