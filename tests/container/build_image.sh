#!/bin/sh
# Builds the image of deploy/docker/Dockerfile with buildah, as root on Debian. `make container` runs it.
# Where no container registry can be reached, debootstrap makes the base image from Debian's packages.
set -eu
cd "$(dirname "$0")/../.."
registry_image=docker.io/library/debian:13-slim
own_image=localhost/gatehouse-base
work=$(mktemp -d /var/tmp/gatehouse-container.XXXXXX)
trap 'rm -rf "$work"' EXIT

missing=""
for program in buildah podman runc debootstrap; do
    command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
if [ -n "$missing" ]; then
    echo "Installing$missing."
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    # shellcheck disable=SC2086 # Each word is a package.
    apt-get -qq install -y --no-install-recommends $missing uidmap >/dev/null
fi

if buildah pull -q "$registry_image" >/dev/null 2>&1; then
    base=$registry_image
else
    base=$own_image
    if ! buildah inspect "$own_image" >/dev/null 2>&1; then
        echo "No registry can be reached. Making a base image with debootstrap."
        mirror=$(sed -n 's/^URIs: *//p; s/^deb *\(\[.*\]\)* *\(http[^ ]*\).*/\2/p' \
            /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list 2>/dev/null | head -n 1)
        debootstrap --variant=minbase trixie "$work/root" ${mirror:+"$mirror"} >"$work/log" || { cat "$work/log"; exit 1; }
        # As in Debian's own slim images.
        for folder in doc man locale info; do
            echo "path-exclude /usr/share/$folder/*" >>"$work/root/etc/dpkg/dpkg.cfg.d/slim"
            rm -rf "$work/root/usr/share/$folder"
        done
        rm -rf "$work/root/var/lib/apt/lists/"* "$work/root/var/cache/apt/archives/"*.deb
        container=$(buildah from scratch)
        buildah add -q "$container" "$work/root" / >/dev/null
        buildah config --cmd sh "$container"
        buildah commit -q "$container" "$own_image" >/dev/null
        buildah rm "$container" >/dev/null
    fi
fi

# The build asks the index and trusts the certificates of this machine. Nothing of that stays in the image.
echo "[global]" >"$work/pip.conf"
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    echo "cert = /host-certificates/ca-certificates.crt" >>"$work/pip.conf"
fi
index=$(python3 -m pip config get global.index-url 2>/dev/null) && echo "index-url = $index" >>"$work/pip.conf"
# The format of Docker: that of OCI has no health checks.
buildah bud --isolation chroot --format docker --build-arg "BASE=$base" \
    --volume /etc/ssl/certs:/host-certificates:ro --volume "$work/pip.conf:/etc/pip.conf:ro" \
    --file deploy/docker/Dockerfile --tag localhost/gatehouse . >"$work/log" 2>&1 || { tail -n 30 "$work/log"; exit 1; }
echo "Built localhost/gatehouse from $base."
