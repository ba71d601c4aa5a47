# Runs a program inside a root file system: enter.sh ROOT RECIPE ACCESS ARCHIVES PROGRAM...
# The caller has given us mount and process namespaces of our own, so all of this goes when we end.
set -eu
root="$1" recipe="$2" access="$3" archives="$4"
shift 4
mkdir -p "$root/proc" "$root/dev" "$root/run" "$root/tmp"
# Where a container hides parts of /proc, a new one is refused.
mount -t proc proc "$root/proc" 2>/dev/null || mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=0755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
mkdir -p "$root/run/caisson-build/recipe" "$root/run/caisson-build/access"
mount --bind "$recipe" "$root/run/caisson-build/recipe"
mount --bind "$access" "$root/run/caisson-build/access"
if [ -d "$root/var/cache/apt/archives" ]; then
  mount --bind "$archives" "$root/var/cache/apt/archives"
fi
# The name servers are a copy, put there from inside: stages may write to it, and no link in the image leads out.
exec chroot "$root" /bin/sh -c '
  if [ -e /run/caisson-build/access/resolv.conf ]; then
    rm -f /etc/resolv.conf && cat /run/caisson-build/access/resolv.conf >/etc/resolv.conf
  fi
  exec "$@"' inside "$@"
