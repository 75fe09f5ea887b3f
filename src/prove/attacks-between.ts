import { type Attack, says } from './attack.ts'

/**
 * One command of a sandbox against another that runs at the same time. The control run is the same sandbox without
 * isolation, where each of these succeeds. Files in mounts are shared by both.
 */

const MARK = 'rf-between-secret'

/** Offers everything that another command could use, and tells its process id in the workspace. */
const VICTIM = `export RF_BETWEEN=${MARK}
exec -a rf-between-victim python3 - <<'X'
import ctypes,mmap,os,socket,time
libc=ctypes.CDLL(None,use_errno=True)
buffer=ctypes.create_string_buffer(b'${MARK}')
tcp=socket.socket();tcp.setsockopt(socket.SOL_SOCKET,socket.SO_REUSEADDR,1);tcp.bind(('127.0.0.1',7781));tcp.listen(9)
udp=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);udp.bind(('127.0.0.1',7782))
unix=socket.socket(socket.AF_UNIX);unix.bind('\\0rf-between');unix.listen(9)
for path in ('/tmp/rf-between','/dev/shm/rf-between','/dev/rf-between'):
    try: open(path,'w').write('${MARK}')
    except PermissionError: pass
secret=open('/tmp/rf-between')
master,slave=os.openpty()
os.write(master,b'${MARK}\\n')
open('terminal','w').write(os.ttyname(slave))
shm=libc.shmget(0x5246,4096,0o1666)
libc.shmat.restype=ctypes.c_void_p
ctypes.memmove(libc.shmat(shm,None,0),b'${MARK}',${MARK.length})
open('ready.tmp','w').write(f'{os.getpid()} {ctypes.addressof(buffer)} {secret.fileno()}')
os.rename('ready.tmp','ready')
time.sleep(60)
X`

/** The victim's number here, or the one that it has for itself; the address of its secret; its open file. */
const FIND = `read p address fd < ready
for d in /proc/[0-9]*; do tr '\\0' ' ' < $d/cmdline 2>/dev/null | grep -q 'rf-between-vi[c]tim' && p=\${d#/proc/}; done
export p address fd`

const python = (code: string): string => `${FIND}\npython3 - <<'X'
import ctypes,os,socket
libc=ctypes.CDLL(None,use_errno=True)
p,address,fd=int(os.environ['p']),int(os.environ['address']),int(os.environ['fd'])
${code}
X`

/** gVisor's kernel has neither memory nor roots of processes in /proc, nor calls that read memory or take descriptors. */
const notInGvisor: Attack['notApplicable'] = (_, { level }) =>
  level === 'gvisor' ? 'gVisor’s kernel does not have this' : undefined

const attack = (name: string, script: string, word = 'got-it', more: Partial<Attack> = {}): Attack => ({
  name,
  victim: VICTIM,
  spec: { isolation: 'command', network: { mode: 'loopback' } },
  script: () => script,
  succeeded: says(word),
  ...more,
})

/** Attacks on `proc.between`. */
export const BETWEEN: readonly Attack[] = [
  attack(
    'see another command in /proc',
    `cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -q 'rf-between-vi[c]tim' && echo got-it`,
  ),
  attack(
    'signal another command',
    `${FIND}\nkill -0 $p && tr '\\0' ' ' < /proc/$p/cmdline | grep -q 'vi[c]tim' && echo got-it`,
  ),
  attack(
    'change the priority of another command',
    python(`if b'vi'+b'ctim' in open(f'/proc/{p}/cmdline','rb').read():
    os.setpriority(os.PRIO_PROCESS,p,19);print('got-it')`),
  ),
  attack(
    'pin another command to a processor',
    python(`if b'vi'+b'ctim' in open(f'/proc/{p}/cmdline','rb').read():
    os.sched_setaffinity(p,os.sched_getaffinity(p));print('got-it')`),
  ),
  attack(
    'read the environment of another command',
    `${FIND}\ntr '\\0' '\\n' < /proc/$p/environ | grep RF_BETWEEN`,
    MARK,
  ),
  attack(
    'read the memory of another command through /proc',
    python(`m=open(f'/proc/{p}/mem','rb',0);m.seek(address);print(m.read(${MARK.length}).decode())`),
    MARK,
    { notApplicable: notInGvisor },
  ),
  attack(
    'read the memory of another command with process_vm_readv',
    python(`class V(ctypes.Structure): _fields_=[('base',ctypes.c_void_p),('length',ctypes.c_size_t)]
b=ctypes.create_string_buffer(64);one=V(ctypes.addressof(b),${MARK.length});other=V(address,${MARK.length})
libc.process_vm_readv(p,ctypes.byref(one),1,ctypes.byref(other),1,0);print(b.value.decode())`),
    MARK,
    { notApplicable: notInGvisor },
  ),
  attack(
    'read a file through the root directory of another command',
    `${FIND}\ncat /proc/$p/root/tmp/rf-between`,
    MARK,
    { notApplicable: notInGvisor },
  ),
  attack('open a descriptor of another command', `${FIND}\ncat /proc/$p/fd/$fd`, MARK),
  attack(
    'take a descriptor of another command with a pidfd',
    python(`pidfd=libc.syscall(434,p,0);f=libc.syscall(438,pidfd,fd,0);print(os.pread(f,64,0).decode())`),
    MARK,
    { notApplicable: notInGvisor },
  ),
  attack(
    'connect to a TCP port of another command',
    python(`socket.create_connection(('127.0.0.1',7781),3);print('got-it')`),
  ),
  attack(
    'send a datagram to a port of another command',
    python(`s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM);s.connect(('127.0.0.1',7782))
s.send(b'x');s.settimeout(0.5)
try: s.recv(1)
except TimeoutError: print('got-it')`),
  ),
  attack(
    'connect to an abstract socket of another command',
    python(`s=socket.socket(socket.AF_UNIX);s.connect(b'\\0rf-between');print('got-it')`),
  ),
  attack(
    'attach to System V shared memory of another command',
    python(`libc.shmat.restype=ctypes.c_void_p
i=libc.shmget(0x5246,0,0);print(ctypes.string_at(libc.shmat(i,None,0)).decode() if i>=0 else '')`),
    MARK,
  ),
  attack('read a file that another command wrote to /tmp', 'cat /tmp/rf-between', MARK),
  attack('read a file that another command wrote to /dev/shm', 'cat /dev/shm/rf-between', MARK),
  attack(
    'read what another command put in /dev: a file, and the input of its terminal',
    'cat /dev/rf-between; timeout 3 head -n1 "$(cat terminal)"',
    MARK,
  ),
]

const granted: Attack['spec'] = {
  isolation: 'command',
  network: { mode: 'fetch', allowHosts: ['api.example.com'] },
  secrets: ['TOKEN=RF_BROKERED@api.example.com'],
}

const grantAttack = (name: string, script: string, word: string): Attack => ({
  name,
  victim: `touch ready; exec sleep 60`,
  victimCommand: { secrets: ['TOKEN'] },
  command: { network: false },
  spec: granted,
  script: () => script,
  succeeded: says(word),
})

/** Attacks on `secrets.between`. */
export const GRANTED: readonly Attack[] = [
  grantAttack(
    'use the placeholder of a secret that another command was given',
    '[ -n "$TOKEN" ] && echo got-it',
    'got-it',
  ),
  grantAttack(
    'find the placeholder in other processes',
    `cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -q '^TOKEN=.' && echo got-it`,
    'got-it',
  ),
  grantAttack(
    'use the connection to the proxy that another command was given',
    `(exec 3<>/dev/tcp/127.0.0.1/3128) && echo got-it`,
    'got-it',
  ),
]
