#!/usr/bin/env bash
# Installs what the test cluster is made of, where it is missing: Debian packages, and the programs of Kubernetes, etcd, helm
# and CoreDNS, built from the modules under tests/cluster/tools. Prints the folder of the programs.
# Takes 8 minutes on two cores the first time; a change of the modules rebuilds what it touches.
set -euo pipefail
cd "$(dirname "$0")/../.."
tools=$PWD/tests/cluster/tools
cache=${POINTSMAN_CACHE:-$HOME/.cache/pointsman}
bin=$cache/cluster/bin
mkdir -p "$bin"

declare -A package_of=(
    [containerd]=containerd [runc]=runc [nft]=nftables [iptables]=iptables [conntrack]=conntrack [ipset]=ipset
    [ip]=iproute2 [openssl]=openssl [curl]=curl [gcc]=gcc [strip]=binutils
)
need_packages=()
for program in "${!package_of[@]}"; do
    command -v "$program" >/dev/null || need_packages+=("${package_of[$program]}")
done
[ -x /usr/lib/cni/bridge ] || need_packages+=(containernetworking-plugins)
if [ "${#need_packages[@]}" -gt 0 ]; then
    # The cluster runs a containerd of its own: Debian's must not be started.
    policy=
    if [ ! -e /usr/sbin/policy-rc.d ]; then
        policy=/usr/sbin/policy-rc.d
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y "${need_packages[@]}" >&2
fi

# Several runs may start at once: one builds, the others wait.
exec 9>"$cache/cluster/build.lock"
flock 9

key=$(cat "$tools"/*/go.mod "$tools"/*/go.sum "$tools/pause.c" tests/setup/cluster.sh | sha256sum | cut -d' ' -f1)
if [ "$(cat "$bin/.key" 2>/dev/null)" != "$key" ]; then
    command -v go >/dev/null || { echo "Go 1.26 or newer is needed to build the test cluster's programs" >&2; exit 1; }
    rm -f "$bin/.key"
    # What a release's own build stamps into them: the versions that they tell, and that charts are checked against.
    version=$(sed -n 's/^.*k8s.io\/kubernetes \(v[0-9.]*\).*$/\1/p' "$tools/kubernetes/go.mod" | head -1)
    minor=${version#v*.}
    minor=${minor%%.*}
    stamp=k8s.io/component-base/version
    stamps="-X $stamp.gitVersion=$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=$minor"
    helm=helm.sh/helm/v3
    helm_version=$(sed -n 's/^.*helm.sh\/helm\/v3 \(v[0-9.]*\).*$/\1/p' "$tools/helm/go.mod" | head -1)
    helm_stamps="-X $helm/internal/version.version=$helm_version"
    for package in chartutil lint/rules; do
        helm_stamps+=" -X $helm/pkg/$package.k8sVersionMajor=1 -X $helm/pkg/$package.k8sVersionMinor=$minor"
    done
    build() { # build MODULE OUTPUT LDFLAGS PACKAGE...
        local module=$1 output=$2 flags=$3
        shift 3
        CGO_ENABLED=0 GOFLAGS=-buildvcs=false go -C "$tools/$module" build -trimpath -ldflags "-s -w $flags" -o "$output" "$@" >&2
    }
    build kubernetes "$bin/" "$stamps" \
        k8s.io/kubernetes/cmd/{kube-apiserver,kube-controller-manager,kube-scheduler,kubelet,kube-proxy,kubectl}
    build kubernetes "$bin/etcd" "" go.etcd.io/etcd/server/v3
    build helm "$bin/helm" "$helm_stamps" helm.sh/helm/v3/cmd/helm
    build coredns "$bin/coredns" "" github.com/coredns/coredns
    gcc -O2 -static -Wall -o "$bin/pause" "$tools/pause.c"
    echo "$key" >"$bin/.key"
fi
echo "$bin"
