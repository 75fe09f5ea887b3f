#!/bin/sh
# Runs a node of the cluster, which runs sandboxes, on this machine of a Swarm: in a container beside the stack, because Swarm
# gives its services no privileges for namespaces. Run it once on each machine that is to run sandboxes, after `docker stack deploy`.
#
#   DATABASE_URL=postgres://… KEY_FILE=./cluster.key ./node.sh
#
# SYS_ADMIN and no seccomp profile: bubblewrap makes namespaces and mounts. NET_ADMIN: the network of a sandbox. Unconfined system
# paths: a sandbox mounts a /proc of its own, which the kernel allows only where none is masked. Without limits of the container's
# cgroup the agent of each sandbox limits memory and processes itself; add `--privileged` for cgroup limits and virtual machines.
set -eu
name=${NAME:-$(hostname)}
network=${NETWORK:-ringfence_ringfence}
state=${STATE:-/var/lib/ringfence}
mkdir -p "$state"
install -m 600 "$KEY_FILE" "$state/cluster.key"
exec docker run --detach --restart always --name ringfence-node --network "$network" \
  --stop-timeout 60 --cap-add SYS_ADMIN --cap-add NET_ADMIN \
  --security-opt seccomp=unconfined --security-opt apparmor=unconfined --security-opt systempaths=unconfined \
  --volume "$state:/var/lib/ringfence" --env "RINGFENCE_DATABASE_URL=$DATABASE_URL" --env "NAME=$name" \
  --entrypoint /usr/bin/tini "${IMAGE:-ringfence:latest}" -- /bin/sh -c '
    printf "[cluster]\nrole = \"node\"\nname = \"%s\"\nlisten = \"0.0.0.0:4300\"\nurl = \"https://%s:4300\"\n" \
      "$NAME" "$(hostname -i | cut -d" " -f1)" > /tmp/ringfence.toml
    cd /srv && exec ringfence serve --role node --config /tmp/ringfence.toml'
