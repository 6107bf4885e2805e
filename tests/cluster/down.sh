#!/usr/bin/env bash
# down.sh [STATE]: ends the machine's test cluster and removes what it left: processes, containers, mounts, networks, files.
# Works on the remains of a run that was killed, too. STATE: as for up.sh. With KEEP_LOGS=FOLDER its logs
# are moved to FOLDER/cluster-logs.
set -uo pipefail
source "$(dirname "$0")/processes.sh"
state=${1:-$(cat "$registry/state" 2>/dev/null || echo "$default_state")}
[ -d "$state" ] && state=$(cd "$state" && pwd -P)
[ "$state" != / ] || exit 2

for name in kubelet proxy controller-manager scheduler; do stop "$state" "$name" 2; done

# Shims remove their sockets only when they end in peace.
sockets=$(cat "$state"/run/containerd/io.containerd.runtime.v2.task/k8s.io/*/address 2>/dev/null |
    grep -o '/run/containerd/s/[0-9a-f]*' | sort -u)
# Containers: with their shims, then whatever is left in the cluster's cgroups.
for _ in 1 2 3; do
    for process in /proc/[0-9]*; do
        [[ "$(readlink "$process/exe" 2>/dev/null)" == *containerd-shim* ]] || continue
        tr '\0' ' ' <"$process/cmdline" 2>/dev/null | grep -qF " $state/run/containerd.sock " && kill -9 "${process#/proc/}"
    done
    for tasks in $(find /sys/fs/cgroup/"$cgroup" /sys/fs/cgroup/*/"$cgroup" -name cgroup.procs 2>/dev/null); do
        cat "$tasks" 2>/dev/null | xargs -r kill -9 2>/dev/null
    done
    sleep 0.2
done
[ -z "$sockets" ] || xargs rm -f <<<"$sockets"
for name in containerd apiserver etcd; do stop "$state" "$name" 3; done

awk -v state="$state/" 'index($2, state) == 1 {print $2}' /proc/mounts | sort -r | xargs -r -n1 umount -l 2>/dev/null
ip -o link show master "$bridge" 2>/dev/null | grep -o 'link-netns [^ ]*' | cut -d' ' -f2 | sort -u |
    xargs -r -n1 ip netns del 2>/dev/null
ip link del "$bridge" 2>/dev/null
nft delete table ip kube-proxy 2>/dev/null
nft delete table ip6 kube-proxy 2>/dev/null
for result in /var/lib/cni/results/pointsman-pods-*-eth0; do
    [ -e "$result" ] || continue
    sandbox=${result##*/pointsman-pods-}
    rm -f "$result" "/var/lib/cni/results/cni-loopback-${sandbox%-eth0}-lo"
done
for link in /var/log/containers/*; do
    [[ "$(readlink "$link")" == "$state"/* ]] && rm -f "$link"
done
find /sys/fs/cgroup/"$cgroup" /sys/fs/cgroup/*/"$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null
if [ -n "${KEEP_LOGS:-}" ] && [ -d "$state/log" ]; then
    rm -rf "$KEEP_LOGS/cluster-logs"
    mkdir -p "$KEEP_LOGS" && mv "$state/log" "$KEEP_LOGS/cluster-logs" && echo "the cluster's logs: $KEEP_LOGS/cluster-logs" >&2
fi
# Never across a mount that would not go away: a host folder may be behind it.
rm -rf --one-file-system "$state"
rm -rf "$registry"
exit 0
