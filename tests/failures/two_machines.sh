#!/bin/bash
# Runs a program on two simulated machines: two network namespaces, each with its own host name and sshd, connected by
# MPICH over TCP. Needs root, on Debian or Ubuntu; installs openssh-server and iproute2 if they are missing.
#   tests/failures/two_machines.sh [--cut SECONDS] [-n RANKS] PROGRAM [OPTION...]
# -n: ranks per machine (1). --cut: disconnects the second machine after SECONDS; 10 seconds after the launcher's end,
# the script prints which ranks are left. Its status is the launcher's.
set -euo pipefail
cut="" ranks=1
while :; do
    case ${1-} in
    --cut) cut=$2 && shift 2 ;;
    -n) ranks=$2 && shift 2 ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0"; exit 2; }
command -v sshd >/dev/null && command -v ip >/dev/null ||
    { apt-get update -qq && apt-get install -y -qq openssh-server openssh-client iproute2 >/dev/null; }
program=$(readlink -f "$1")
shift
name=two$$                              # of the namespaces and of the bridge between them
dir=$(mktemp -d)
mkdir -p /run/sshd
ssh-keygen -q -t ed25519 -N '' -f "$dir/key"

clean_up() {
    pkill -KILL -f "^$program" || true
    for i in 1 2; do
        kill "$(cat "$dir/sshd$i" 2>/dev/null)" 2>/dev/null || true
        ip netns del "$name.$i" 2>/dev/null || true
    done
    ip link del "$name" 2>/dev/null || true
    rm -r "$dir"
}
trap clean_up EXIT

ip link add "$name" type bridge
ip addr add 10.77.0.254/24 dev "$name"
ip link set "$name" up
for i in 1 2; do
    ip netns add "$name.$i"
    ip link add "$name.$i" type veth peer name e0 netns "$name.$i"
    ip link set "$name.$i" master "$name" up
    ip -n "$name.$i" addr add "10.77.0.$i/24" dev e0
    ip -n "$name.$i" link set e0 up
    ip -n "$name.$i" link set lo up
    ip netns exec "$name.$i" unshare -u sh -c "hostname node$i; exec $(command -v sshd) -D -o ListenAddress=10.77.0.$i \
        -o PermitRootLogin=yes -o AuthorizedKeysFile=$dir/key.pub -o StrictModes=no -o PidFile=$dir/sshd$i \
        -o UsePAM=no" >"$dir/log$i" 2>&1 &
done
cat >"$dir/ssh" <<END
#!/bin/sh
exec ssh -i $dir/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR "\$@"
END
chmod +x "$dir/ssh"
for _ in $(seq 50); do
    "$dir/ssh" 10.77.0.1 true 2>/dev/null && "$dir/ssh" 10.77.0.2 true 2>/dev/null && break
    sleep .1
done

mpiexec -launcher ssh -launcher-exec "$dir/ssh" -iface "$name" -genv UCX_TLS tcp,self -genv UCX_NET_DEVICES e0 \
    -hosts 10.77.0.1,10.77.0.2 -ppn "$ranks" "$program" "$@" &
launcher=$!
if [ -n "$cut" ]; then
    sleep "$cut"
    echo "== node2 loses its network"
    ip -n "$name.2" link set e0 down
fi
status=0
wait $launcher || status=$?
echo "== status $status"
if [ -n "$cut" ]; then
    sleep 10
    left=$(pgrep -f "^$program" | tr '\n' ' ') || true
    echo "== 10 seconds later ${left:-no rank} is left"
fi
exit $status
