import { type Attack, rootOnly, says, unlessProbed } from './attack.ts'
import { contentOf, SECRET } from './world.ts'

/** Reaching out, and getting at brokered secrets. */

const connectTo = (port: number, host = '127.0.0.1'): string =>
  `exec 8<>/dev/tcp/${host}/${port} && head -c5 <&8`

/** Attacks on `net.offline` and `net.loopback`. */
export const NETWORK: readonly Attack[] = [
  {
    name: "connect to the host's loopback",
    script: ({ port }) => connectTo(port),
    succeeded: says('hello'),
  },
  {
    name: 'connect from a grandchild process',
    script: ({ port }) => `bash -c 'bash -c "${connectTo(port).replace(/"/g, '\\"')}"'`,
    succeeded: says('hello'),
  },
  {
    name: 'use a raw packet socket',
    script: ({ probe }) => `${probe} socket 17`,
    succeeded: says('yes'),
    notApplicable: rootOnly,
  },
  {
    name: 'connect to another address of the host',
    script: ({ port }) => connectTo(port, '127.0.0.2'),
    succeeded: says('hello'),
  },
  {
    name: 'send a UDP datagram like a DNS query',
    script: ({ datagrams }, workspace) =>
      `echo -n ${workspace} > /dev/udp/127.0.0.1/${datagrams.port}; sleep 0.1`,
    succeeded: (_, { datagrams }, workspace) => datagrams.heard().includes(workspace),
  },
  {
    name: 'find a route out of the machine',
    script: () => '[ $(wc -l < /proc/net/route) -gt 1 ] && echo got-it',
    succeeded: says('got-it'),
    notApplicable: () =>
      contentOf('/proc/net/route').trim().split('\n').length > 1
        ? undefined
        : 'this machine has no way out itself',
  },
  {
    name: "list the host's network interfaces",
    script: () => 'grep -v -e lo: -e "|" /proc/net/dev && echo got-it',
    succeeded: says('got-it'),
    notApplicable: () =>
      contentOf('/proc/net/dev').trim().split('\n').length > 3
        ? undefined
        : 'this machine has no other interface',
  },
  {
    name: 'send raw ICMP',
    script: ({ probe }) => `${probe} icmp`,
    succeeded: says('yes'),
    notApplicable: rootOnly,
  },
  {
    name: 'open a vsock to the hypervisor',
    script: ({ probe }) => `${probe} call vsock`,
    succeeded: says('yes'),
    notApplicable: unlessProbed('call', 'vsock'),
  },
]

/** Asks the proxy, where there is one, and the host itself where there is none; the answer is the listener's. */
const asking = (port: number, how: string, host = '127.0.0.1'): string =>
  `curl -sS --max-time 5 --http0.9 --noproxy '' ${how} http://${host}:${port}/ 2>&1`
const viaProxy = (form: string): string => `\${HTTP_PROXY:+${form} 127.0.0.1:3128}`
const open = { network: { mode: 'fetch', allowHosts: ['*'] } }

/** Attacks on `net.fetch`. */
export const THROUGH_PROXY: readonly Attack[] = [
  {
    name: "reach the host's loopback through the proxy",
    spec: open,
    script: ({ port }) => asking(port, viaProxy('-x')),
    succeeded: says('hello'),
  },
  {
    name: "reach the host's loopback through a CONNECT tunnel",
    spec: open,
    script: ({ port }) => asking(port, viaProxy('-p -x')),
    succeeded: says('hello'),
  },
  {
    name: "reach the host's loopback through SOCKS",
    spec: open,
    script: ({ port }) => asking(port, viaProxy('--socks5-hostname')),
    succeeded: says('hello'),
  },
  {
    name: "reach the host's loopback by another notation of its address",
    spec: open,
    script: ({ port }) =>
      ['2130706433', '0x7f.1', '[::ffff:127.0.0.1]', 'localhost']
        .map((host) => asking(port, viaProxy('-x'), host))
        .join('\n'),
    succeeded: says('hello'),
  },
]

const brokering = { secrets: ['TOKEN=RF_BROKERED@api.example.com'] }

/** Attacks on `secrets.outside`. */
export const BROKERED: readonly Attack[] = [
  {
    name: 'print the variable',
    spec: brokering,
    script: () => 'echo "$TOKEN"; env',
    succeeded: says(SECRET),
  },
  {
    name: 'search every process and file of the sandbox for the value',
    spec: brokering,
    script: () =>
      `cat /proc/*/environ /proc/*/cmdline /dev/ringfence/* 2>/dev/null | tr '\\0' '\\n' | grep -a ${SECRET.slice(0, 6)}`,
    succeeded: says(SECRET),
  },
]
