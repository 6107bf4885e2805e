#!/usr/bin/env bash
# up.sh [--for PID] [STATE]: brings up a real Kubernetes of one node on this machine, as root, and prints its state folder
# (default $POINTSMAN_CACHE/cluster/state). KUBECONFIG is STATE/kubeconfig.
#
# A machine has one at a time, because of its bridge, service addresses and ports. What a killed run left is removed first.
# With --for, the cluster belongs to that process, and once it has ended counts as left over; without, it stays until
# down.sh. One that is in use is never touched: up.sh fails and says where it is.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/processes.sh"
[ "$(id -u)" -eq 0 ] || { echo "a cluster needs root" >&2; exit 1; }
owner=
if [ "${1:-}" = --for ]; then
    owner=$(identity "$2") || { echo "no process $2" >&2; exit 2; }
    shift 2
fi
state=${1:-$default_state}
bin=$(bash "$here/../setup/cluster.sh")

exec 8>"$registry.lock"
flock 8
if [ -f "$registry/state" ]; then
    other=$(cat "$registry/state")
    other_owner=$(cat "$registry/owner" 2>/dev/null || true)
    in_use=false
    if [ -n "$other_owner" ]; then
        [ "$(identity "${other_owner%% *}")" != "$other_owner" ] || in_use=true
    elif is_running "$other" apiserver || is_running "$other" kubelet; then
        in_use=true
    fi
    if $in_use; then
        echo "a cluster is up: POINTSMAN_CLUSTER=$other uses it, tests/cluster/down.sh removes it" >&2
        exit 1
    fi
    bash "$here/down.sh" "$other"
fi
if [ -e "$state" ] && [ ! -d "$state/pki" ] && [ -n "$(ls -A "$state")" ]; then
    echo "$state is no cluster's folder" >&2
    exit 2
fi
bash "$here/down.sh" "$state"
mkdir -p "$registry" "$state"/{pki,log,run,etcd,cni,kubelet/plugins}
state=$(cd "$state" && pwd -P)
echo "$state" >"$registry/state"
[ -z "$owner" ] || echo "$owner" >"$registry/owner"
trap 'code=$?; [ $code -eq 0 ] || { tail -n 20 "$state"/log/*.log >&2; bash "$here/down.sh" "$state"; }' EXIT
trap 'exit 130' INT TERM

node=node-0
api=https://127.0.0.1:6443
pki=$state/pki

# --- certificates
new_key() { openssl ecparam -name prime256v1 -genkey -noout -out "$1"; }
new_key "$pki/ca.key"
openssl req -x509 -new -key "$pki/ca.key" -days 3650 -subj /CN=ca -out "$pki/ca.crt"
new_key "$pki/service-accounts.key"
openssl ec -in "$pki/service-accounts.key" -pubout -out "$pki/service-accounts.pub" 2>/dev/null
sign() { # sign NAME SUBJECT ALTERNATIVE_NAMES
    new_key "$pki/$1.key"
    openssl req -new -key "$pki/$1.key" -subj "$2" -out "$pki/$1.csr"
    openssl x509 -req -in "$pki/$1.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 3650 \
        -extfile <(echo "subjectAltName=$3") -out "$pki/$1.crt" 2>/dev/null
}
kubeconfig() { # kubeconfig NAME: for the holder of its certificate
    cat <<YAML
apiVersion: v1
kind: Config
clusters: [{name: test, cluster: {server: "$api", certificate-authority: "$pki/ca.crt"}}]
users: [{name: $1, user: {client-certificate: "$pki/$1.crt", client-key: "$pki/$1.key"}}]
contexts: [{name: test, context: {cluster: test, user: $1}}]
current-context: test
YAML
}
names=DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local
sign apiserver /CN=apiserver "IP:127.0.0.1,IP:$pod_gateway,IP:$api_service,$names"
sign admin /O=system:masters/CN=admin DNS:admin
sign kubelet "/O=system:nodes/CN=system:node:$node" "DNS:$node,IP:$pod_gateway"
sign controller-manager /CN=system:kube-controller-manager DNS:controller-manager
sign scheduler /CN=system:kube-scheduler DNS:scheduler
sign proxy /CN=system:kube-proxy DNS:proxy
for name in admin kubelet controller-manager scheduler proxy; do kubeconfig $name >"$pki/$name.kubeconfig"; done
cp "$pki/admin.kubeconfig" "$state/kubeconfig"

# --- what the components read
cat >"$state/audit.yaml" <<YAML
# All that an operator under test does, and everybody's writes.
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- {level: None, userGroups: ["system:serviceaccounts:kube-system"], verbs: [get, list, watch]}
- {level: Metadata, userGroups: ["system:serviceaccounts"]}
- {level: Metadata, verbs: [create, update, patch, delete, deletecollection]}
- {level: None}
YAML
cat >"$state/containerd.toml" <<TOML
version = 2
root = "$state/containerd"
state = "$state/run/containerd"
[grpc]
  address = "$state/run/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$state/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "pointsman.test/pause:1"
  # Machines that are virtual themselves often lack CAP_SYS_RESOURCE and AppArmor.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$state/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
TOML
cat >"$state/cni/10-pods.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "pointsman-pods", "plugins": [
  {"type": "bridge", "bridge": "$bridge", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$state/ipam", "routes": [{"dst": "0.0.0.0/0"}],
            "ranges": [[{"subnet": "$pod_network", "gateway": "$pod_gateway"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
JSON
echo "nameserver 127.0.0.1" >"$state/resolv.conf"
cat >"$state/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: "$pki/ca.crt"}}
authorization: {mode: Webhook}
tlsCertFile: $pki/kubelet.crt
tlsPrivateKeyFile: $pki/kubelet.key
containerRuntimeEndpoint: unix://$state/run/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$cgroup
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
clusterDNS: [$dns_service]
clusterDomain: cluster.local
resolvConf: $state/resolv.conf
podLogsDir: $state/pod-logs
volumePluginDir: $state/kubelet/plugins
maxPods: 300
# A container that is killed again and again comes back in a second, not in minutes.
featureGates: {KubeletCrashLoopBackOffMax: true}
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
syncFrequency: 5s
nodeStatusUpdateFrequency: 5s
# The machine's own tables stay as they are.
makeIPTablesUtilChains: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi, nodefs.available: 1%, imagefs.available: 1%}
YAML

# --- how the components are run
component() { # component NAME COMMAND...
    local name=$1
    shift
    { echo "cd '$state'"; printf 'exec'; printf ' %q' "$@"; echo; } >"$state/run/$name.sh"
}
etcd=http://127.0.0.1:2379
component etcd "$bin/etcd" --data-dir=etcd --listen-client-urls=$etcd --advertise-client-urls=$etcd \
    --listen-peer-urls=http://127.0.0.1:2380 --initial-advertise-peer-urls=http://127.0.0.1:2380 \
    --initial-cluster=default=http://127.0.0.1:2380 --unsafe-no-fsync
component apiserver "$bin/kube-apiserver" --etcd-servers=$etcd --bind-address=0.0.0.0 --secure-port=6443 \
    --advertise-address=$pod_gateway --endpoint-reconciler-type=lease \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" --client-ca-file="$pki/ca.crt" \
    --kubelet-client-certificate="$pki/admin.crt" --kubelet-client-key="$pki/admin.key" \
    --kubelet-preferred-address-types=InternalIP \
    --service-account-issuer=https://kubernetes.default.svc --service-account-key-file="$pki/service-accounts.pub" \
    --service-account-signing-key-file="$pki/service-accounts.key" --service-cluster-ip-range=$service_network \
    --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction --allow-privileged=true \
    --audit-policy-file="$state/audit.yaml" --audit-log-path="$state/log/audit.log" --audit-log-mode=blocking \
    --audit-log-maxsize=4096
component controller-manager "$bin/kube-controller-manager" --kubeconfig="$pki/controller-manager.kubeconfig" \
    --service-account-private-key-file="$pki/service-accounts.key" --root-ca-file="$pki/ca.crt" \
    --use-service-account-credentials=true --leader-elect=false --node-monitor-grace-period=20s
component scheduler "$bin/kube-scheduler" --kubeconfig="$pki/scheduler.kubeconfig" --leader-elect=false
component containerd containerd --config "$state/containerd.toml"
component kubelet "$bin/kubelet" --config="$state/kubelet.yaml" --kubeconfig="$pki/kubelet.kubeconfig" \
    --hostname-override=$node --node-ip=$pod_gateway --root-dir="$state/kubelet" --cert-dir="$state/kubelet/pki" \
    --node-labels=topology.kubernetes.io/zone=zone-a,topology.kubernetes.io/region=region-1
component proxy "$bin/kube-proxy" --kubeconfig="$pki/proxy.kubeconfig" --proxy-mode=nftables --cluster-cidr=$pod_network \
    --hostname-override=$node --conntrack-max-per-core=0

# --- network: the bridge is there before the apiserver, which is reached by pods at its address
ip link add "$bridge" type bridge
ip addr add "$pod_gateway/${pod_network#*/}" dev "$bridge"
ip link set "$bridge" up
sysctl -qw net.ipv4.ip_forward=1 || true
# The kubelet keeps its cgroups in one of ours, so that nothing else is ever ended with them.
if [ -f /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir -p "/sys/fs/cgroup/$cgroup"
    for controller in $(cat /sys/fs/cgroup/cgroup.controllers); do
        echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null || true
    done
else
    for hierarchy in /sys/fs/cgroup/*/; do
        mkdir -p "$hierarchy$cgroup"
        [ ! -f "$hierarchy/cpuset.cpus" ] || for file in cpuset.cpus cpuset.mems; do
            cat "$hierarchy/$file" >"$hierarchy$cgroup/$file"
        done
    done
fi

# --- up
k() { "$bin/kubectl" --kubeconfig "$state/kubeconfig" "$@"; }
start "$state" etcd
start "$state" containerd
start "$state" apiserver
wait_for containerd 60 ctr -a "$state/run/containerd.sock" version
USER_ID=0 bash "$here/image.sh" "$state" pointsman.test/pause:1 '["/usr/bin/pause"]' "$bin/pause" 2>/dev/null
USER_ID=0 bash "$here/image.sh" "$state" pointsman.test/coredns:1 '["/usr/bin/coredns"]' "$bin/coredns" 2>/dev/null
wait_for "the apiserver" 120 k get --raw /readyz
for name in controller-manager scheduler kubelet proxy; do start "$state" $name; done
k apply -f "$here/coredns.yaml" >&2
wait_for "the node" 120 k wait --for=condition=Ready "node/$node" --timeout=5s
wait_for "cluster DNS" 120 k -n kube-system wait --for=condition=Available deployment/coredns --timeout=5s
echo "$state"
