#!/bin/bash
# install.sh DEB: installs a package in a root folder made of this machine's programs, and tries it.
# check.sh runs it with mounts of its own.
set -euo pipefail
export LC_ALL=C PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
deb=$(realpath "$1")
root=$(mktemp -d)
mount -t tmpfs none "$root"
trap 'umount -R "$root"; rmdir "$root"' EXIT

fail() {
  echo "install: $*" >&2
  exit 1
}

# The machine's programs, below links, beside what the package writes.
mkdir -p "$root"/{host,tmp,dev,etc,run,usr/{bin,sbin,lib,share},var/lib,var/log}
mount --bind / "$root/host"
mount --bind /dev "$root/dev"
for part in bin sbin lib share; do find "/usr/$part" -mindepth 1 -maxdepth 1 -printf '/host%p\n' | xargs ln -s -t "$root/usr/$part"; done
rm -f "$root"/usr/lib/systemd "$root"/usr/share/doc "$root"/usr/bin/sluicebox
ln -s /host/usr/lib64 "$root/usr/lib64"
for part in bin sbin lib lib64; do ln -s "usr/$part" "$root/$part"; done
cp -a /etc/{passwd,group,shadow,gshadow,adduser.conf,nsswitch.conf,login.defs,ld.so.cache} "$root/etc/"
cp -a /var/lib/dpkg "$root/var/lib/"
cp "$deb" "$root/tmp/sluicebox.deb"
try() { chroot "$root" "$@"; }

try dpkg -i /tmp/sluicebox.deb >/dev/null
try dpkg -V sluicebox
try getent passwd sluicebox | grep -q ':/nonexistent:.*nologin$' || fail "the user is $(try getent passwd sluicebox)"
conf=/etc/sluicebox/sluicebox.yaml
[ "$(try stat -c '%U:%G %a' $conf)" = "root:sluicebox 640" ] || fail "$conf is $(try stat -c '%U:%G %a' $conf)"
try sluicebox version
code=0
try sluicebox config check >"$root/tmp/said" 2>&1 || code=$?
[ "$code" = 78 ] && grep -q source.url "$root/tmp/said" || fail "config check ends with $code: $(cat "$root/tmp/said")"

# As the service runs it: with its user, and a configuration that works.
mkdir -m 777 "$root/tmp/data"
: >"$root/tmp/data/shop.db"
cat >"$root$conf" <<'END'
source: {url: 'sqlite:///tmp/data/shop.db'}
outboxes: [{table: outbox_messages, layout: outbox-messages, sink: log}]
sinks: {log: {type: log, output: /tmp/data/rows}}
admin: {listen: ''}
END
try sluicebox init --outbox outbox-messages --source sqlite:///tmp/data/shop.db --apply >/dev/null
chmod 666 "$root"/tmp/data/*
run=$(sed -n 's/^ExecStart=//p' "$root/usr/lib/systemd/system/sluicebox.service")
user=$(sed -n 's/^User=//p' "$root/usr/lib/systemd/system/sluicebox.service")
: >"$root/tmp/log"
# shellcheck disable=SC2086 # a command with arguments
chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups $run >"$root/tmp/log" 2>&1 &
pid=$!
for _ in $(seq 600); do
  if grep -q 'source connected' "$root/tmp/log" || ! kill -0 $pid 2>/dev/null; then break; fi
  sleep 0.1
done
kill $pid
wait $pid || fail "the relay ended with $?: $(cat "$root/tmp/log")"
grep -q 'source connected' "$root/tmp/log" || fail "the relay said $(cat "$root/tmp/log")"
echo "ran as $user: $run"

if command -v systemd-analyze >/dev/null; then
  sed "s|/usr/bin/sluicebox|$root/usr/bin/sluicebox|" "$root/usr/lib/systemd/system/sluicebox.service" >"$root/tmp/sluicebox.service"
  said=$(systemd-analyze verify --man=no "$root/tmp/sluicebox.service" 2>&1 || :)
  if grep sluicebox <<<"$said" | grep -v 'User.*not found\|credentials'; then fail "systemd-analyze: $said"; fi
fi

try dpkg -i /tmp/sluicebox.deb >/dev/null # an upgrade keeps the changed file
grep -q shop.db "$root$conf" || fail "an upgrade replaced $conf"
try dpkg --remove sluicebox >/dev/null
[ ! -e "$root/usr/bin/sluicebox" ] && [ -e "$root$conf" ] || fail "remove left the program, or took $conf"
try dpkg --purge sluicebox >/dev/null 2>&1
[ ! -e "$root/etc/sluicebox" ] || fail "purge left /etc/sluicebox"
echo "installed, ran, upgraded, removed and purged $(basename "$deb")"
