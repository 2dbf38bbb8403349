#!/bin/sh
# Boots a real systemd in new namespaces: `boot.sh ROOT [REPOSITORY PYTHON_PREFIX]`, as root. Ends with its parent process.
# Inside, the folder ROOT is /, the repository is at /opt/gatehouse and its Python at /opt/python. Changes to / are discarded at the end.
set -eu
umask 022  # Under 077 the service's user could not even enter /.
machine=$1 repository=${2:-} prefix=${3:-}
if [ "${4:-}" != inside ]; then
    exec unshare --mount -- sh -eu -c '
        mount --make-rprivate /
        mount -t tmpfs tmpfs /mnt && mkdir /mnt/cgroup && mount -t cgroup2 none /mnt/cgroup
        for left in /mnt/cgroup/gatehouse-test-*; do
            # Remove the groups of earlier boots, but not of a boot that still runs, whose groups may be empty for a moment.
            [ -d "/proc/${left##*-}" ] || find "$left" -depth -type d -exec rmdir {} + 2> /dev/null || true
        done
        own=/mnt/cgroup/gatehouse-test-$$ && mkdir "$own" && echo $$ > "$own/cgroup.procs"
        exec unshare --pid --fork --kill-child --mount --uts --ipc --net --cgroup -- sh "$0" "$1" "$2" "$3" inside
    ' "$0" "$machine" "$repository" "$prefix"
fi
base=/mnt/machine
mkdir "$base" && mount -t tmpfs tmpfs "$base" && mkdir "$base/upper" "$base/work" "$base/root"
mount -t overlay overlay -o "lowerdir=$machine,upperdir=$base/upper,workdir=$base/work" "$base/root"
root=$base/root
mkdir -p "$root/old"
[ -z "$repository" ] || mkdir -p "$root/opt/gatehouse" "$root/opt/python"
if [ -z "$repository" ]; then
    : # The machine has a Gatehouse of its own, or none.
elif [ -n "$(find "$repository/gateway" "$repository/.venv" -maxdepth 0 ! -perm -o=rx 2>/dev/null)" ]; then
    # The checkout or its environment was made under umask 077. Show the service's user a readable view of it; metacopy
    # copies no content.
    mkdir "$base/code" "$base/code-work"
    code="lowerdir=$repository,upperdir=$base/code,workdir=$base/code-work,metacopy=on"
    mount -t overlay overlay -o "$code" "$root/opt/gatehouse"
    find "$root/opt/gatehouse" ! -type l ! -perm -o=r -exec chmod a+rX {} +
else
    mount --bind "$repository" "$root/opt/gatehouse"
fi
[ -z "$prefix" ] || mount --bind "$prefix" "$root/opt/python"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount -t cgroup2 none "$root/sys/fs/cgroup"
mount -t tmpfs tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device" && mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm" && mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx" && mount -t tmpfs tmpfs "$root/dev/shm"
ln -s /proc/self/fd "$root/dev/fd"
for unit in systemd-sysctl systemd-modules-load systemd-udevd systemd-resolved systemd-logind systemd-networkd-wait-online; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit.service"
done
rm -rf "$root/etc/systemd/system/multi-user.target.wants" "$root/etc/gatehouse"
cd "$root" && pivot_root . old && umount -l /old
mount --make-rshared /
ip link set lo up 2> /dev/null || python3 -c '
import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh", b"lo", 0x49))'
export container=gatehouse-test
exec /lib/systemd/systemd --system --unit=multi-user.target --log-level=err
