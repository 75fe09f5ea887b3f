import { readdirSync, statSync } from 'node:fs'
import { join } from 'node:path'
import type { Guarantee } from '../model/guarantee.ts'
import { type Attack, says, sleep, stdout } from './attack.ts'
import { contentOf } from './world.ts'

/** What the children of a sandbox leave: a daemon that keeps writing after the command has ended. */
export const CLEANUP: readonly Attack[] = [
  {
    name: 'leave a daemon behind',
    script: () =>
      `setsid bash -c 'trap "" TERM HUP; for i in $(seq 20); do date +%N > beat; sleep 0.1; done' > /dev/null 2>&1 < /dev/null & sleep 0.3`,
    succeeded: async (_, __, workspace) => {
      const first = contentOf(join(workspace, 'beat'))
      await sleep(400)
      return contentOf(join(workspace, 'beat')) !== first
    },
  },
  {
    name: 'survive the time limit in a new session',
    limits: { wallMs: 400 },
    script: () =>
      `setsid bash -c 'trap "" TERM HUP; for i in $(seq 30); do date +%N > beat; sleep 0.1; done' > /dev/null 2>&1 < /dev/null & sleep 30`,
    succeeded: async (result, __, workspace) => {
      const first = contentOf(join(workspace, 'beat'))
      await sleep(400)
      return result.outcome.kind !== 'stopped' || contentOf(join(workspace, 'beat')) !== first
    },
  },
]

const megabytesIn = (dir: string): number =>
  readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .reduce((sum, entry) => sum + statSync(join(entry.parentPath, entry.name)).size, 0) / 1048576

/** Using more than the limits allow. */
export const LIMITS = {
  'limit.wall': [
    {
      name: 'run past the time limit, ignoring SIGTERM',
      limits: { wallMs: 300 },
      script: () =>
        'trap "" TERM; end=$((SECONDS+6)); while [ $SECONDS -lt $end ]; do sleep 0.1; done; echo past',
      succeeded: says('past'),
    },
    {
      name: 'stop itself with SIGSTOP',
      limits: { wallMs: 300 },
      script: () => '( sleep 1.5; kill -CONT $$ ) & kill -STOP $$; sleep 1; echo past',
      succeeded: says('past'),
    },
  ],
  'limit.idle': [
    {
      name: 'print nothing for longer than the idle limit',
      limits: { idleMs: 300 },
      script: () => 'echo a; sleep 1.5; echo past',
      succeeded: says('past'),
    },
  ],
  'limit.memory': [
    {
      name: 'exceed the memory limit with several processes',
      limits: { memoryMb: 100 },
      script: ({ probe }) => `${probe} memory 320`,
      succeeded: says('yes'),
    },
    {
      // Of a process whose main thread has exited, /proc shows no memory.
      name: 'exceed the memory limit in processes whose main threads have exited',
      limits: { memoryMb: 100 },
      script: () => `python3 - <<'X'
import ctypes,os,platform,threading,time
leave=60 if platform.machine()=='x86_64' else 93
ready,done=os.pipe()
def hold():
  time.sleep(0.2); held=b'x'*(80<<20); os.write(done,b'x'); time.sleep(1.5); os._exit(len(held)>0)
for _ in range(4):
  if not os.fork():
    threading.Thread(target=hold).start(); ctypes.CDLL(None).syscall(leave,0)
for _ in range(4): os.read(ready,1)
time.sleep(0.5); print('yes')
X`,
      succeeded: says('yes'),
    },
    {
      name: 'exceed the memory limit with memfds',
      limits: { memoryMb: 100 },
      script: () => `python3 - <<'X'
import os,time
files=[os.memfd_create(str(i)) for i in range(4)]
for f in files:
  for _ in range(75): os.write(f,b'x'*1048576)
time.sleep(0.5); print('yes')
X`,
      succeeded: says('yes'),
    },
    {
      name: 'exceed the memory limit with hidden shared mappings',
      limits: { memoryMb: 100 },
      script: () => `python3 - <<'X'
import mmap,time
held=[mmap.mmap(-1,60<<20) for _ in range(5)]
for m in held:
  for at in range(0,60<<20,1<<20): m[at:at+(1<<20)]=b'x'*(1<<20); m.madvise(mmap.MADV_DONTNEED,at,1<<20)
time.sleep(0.5); print('yes')
X`,
      succeeded: says('yes'),
    },
    {
      name: 'exceed the memory limit with System V segments',
      limits: { memoryMb: 100 },
      script: () => `python3 - <<'X'
import ctypes,time
c=ctypes.CDLL(None); c.shmat.restype=ctypes.c_void_p; c.shmat.argtypes=[ctypes.c_int,ctypes.c_void_p,ctypes.c_int]; c.shmdt.argtypes=[ctypes.c_void_p]
ids=[]
try:
  for _ in range(6):
    i=c.shmget(0,50<<20,0o1600); ids.append(i); at=c.shmat(i,None,0); ctypes.memset(at,1,50<<20); c.shmdt(at)
  time.sleep(0.5); print('yes')
finally:
  for i in ids: c.shmctl(i,0,None)
X`,
      succeeded: says('yes'),
    },
    {
      name: 'exceed the memory limit with socket buffers',
      limits: { memoryMb: 100 },
      script: () => `python3 - <<'X'
import resource,socket,time
resource.setrlimit(resource.RLIMIT_NOFILE,(resource.getrlimit(resource.RLIMIT_NOFILE)[1],)*2)
held=[];total=0
while total<(180<<20) and len(held)<8000:
  pair=socket.socketpair(); held.append(pair)
  for s in pair:
    s.setblocking(False)
    try:
      while True: total+=s.send(b'x'*65536)
    except BlockingIOError: pass
time.sleep(0.5); print('yes' if total>=180<<20 else 'no')
X`,
      succeeded: says('yes'),
    },
    {
      // Cgroups of version 1 count them separately. What the kernel dropped is not held.
      name: 'exceed the memory limit with buffers of TCP and UDP',
      limits: { memoryMb: 100 },
      script: () => `python3 - <<'X'
import resource,socket,time
resource.setrlimit(resource.RLIMIT_NOFILE,(resource.getrlimit(resource.RLIMIT_NOFILE)[1],)*2)
held=[];receivers=[];total=0
l=socket.socket(); l.bind(('127.0.0.1',0)); l.listen(64)
while total<(130<<20) and len(held)<2000:
  a=socket.create_connection(l.getsockname()); b,_=l.accept(); a.setblocking(False); held+=[a,b]
  try:
    while True: total+=a.send(b'x'*65536)
  except BlockingIOError: pass
sender=socket.socket(socket.AF_INET,socket.SOCK_DGRAM)
for _ in range(600):
  r=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); r.bind(('127.0.0.1',0)); r.setblocking(False); receivers.append(r)
  for _ in range(12): sender.sendto(b'x'*8192,r.getsockname())
time.sleep(1)
for r in receivers:
  try:
    while True: total+=len(r.recv(65536))
  except BlockingIOError: pass
print('yes' if total>=160<<20 else 'no')
X`,
      succeeded: says('yes'),
    },
    {
      // A connection belongs to no cgroup before somebody accepts it.
      name: 'exceed the memory limit with connections that nobody accepts',
      limits: { memoryMb: 100 },
      script: () => `python3 - <<'X'
import resource,socket,time
resource.setrlimit(resource.RLIMIT_NOFILE,(resource.getrlimit(resource.RLIMIT_NOFILE)[1],)*2)
l=socket.socket(); l.setsockopt(socket.SOL_SOCKET,socket.SO_RCVBUF,1<<22); l.bind(('127.0.0.1',0)); l.listen(4096)
sent=total=count=0
while sent<(200<<20) and count<4000:
  c=socket.socket(); c.setsockopt(socket.SOL_SOCKET,socket.SO_SNDBUF,65536); c.connect(l.getsockname()); c.setblocking(False); count+=1
  try:
    while True: sent+=c.send(b'x'*65536)
  except BlockingIOError: pass
  c.close()
time.sleep(1)
for _ in range(count):
  a,_=l.accept(); a.settimeout(5)
  while True:
    try: data=a.recv(1<<20)
    except OSError: break
    if not data: break
    total+=len(data)
print('yes' if total>=160<<20 else 'no')
X`,
      succeeded: says('yes'),
    },
    {
      name: 'exceed the memory limit with netlink messages that nobody reads',
      limits: { memoryMb: 100 },
      script: () => `python3 - <<'X'
import resource,socket,struct,time
resource.setrlimit(resource.RLIMIT_NOFILE,(resource.getrlimit(resource.RLIMIT_NOFILE)[1],)*2)
ask=struct.pack('=IHHIIBxHiII',32,18,1,1,0,0,0,1,0,0)
held=lambda s: struct.unpack('=9I',s.getsockopt(socket.SOL_SOCKET,55,36))[0]
sockets=[];total=0
while total<(200<<20) and len(sockets)<4000:
  s=socket.socket(socket.AF_NETLINK,socket.SOCK_RAW,0); s.setsockopt(socket.SOL_SOCKET,socket.SO_RCVBUF,1<<22)
  s.bind((0,0)); s.setblocking(False); sockets.append(s); last=-1
  while held(s)>last:
    last=held(s)
    try:
      for _ in range(32): s.send(ask)
    except OSError: break
  total+=held(s)
time.sleep(1)
print('yes' if sum(map(held,sockets))>=160<<20 else 'no')
X`,
      succeeded: says('yes'),
    },
    {
      // 64 bytes of the kernel for each, which no size shows.
      name: 'exceed the memory limit with empty System V messages',
      limits: { memoryMb: 50 },
      script: () => `python3 - <<'X'
import ctypes,time
c=ctypes.CDLL(None); queues=[]; sent=0; message=ctypes.create_string_buffer(b'\\1',16)
try:
  for _ in range(200):
    q=c.msgget(0,0o1600); queues.append(q)
    if q<0: break
    while c.msgsnd(q,message,0,0o4000)==0: sent+=1
  time.sleep(0.5); print('yes' if sent>3000000 else 'no')
finally:
  for q in queues: c.msgctl(q,0,None)
X`,
      succeeded: says('yes'),
    },
    {
      // A kilobyte of the kernel for each, which the size of a tmpfs does not show.
      name: 'exceed the memory limit with empty files in a tmpfs',
      limits: { memoryMb: 50 },
      script: () => `python3 - <<'X'
import os,shutil,tempfile,time
d=tempfile.mkdtemp(dir='/dev/shm')
try:
  for i in range(90000): os.mknod(f'{d}/{i:0200d}')
  time.sleep(0.5); print('yes')
finally: shutil.rmtree(d)
X`,
      succeeded: says('yes'),
    },
    {
      name: 'exceed the memory limit with sockets without data',
      limits: { memoryMb: 50 },
      script: () => `python3 - <<'X'
import ctypes,os,resource,signal,time
c=ctypes.CDLL(None); pair=(ctypes.c_int*2)()
most=resource.getrlimit(resource.RLIMIT_NOFILE)[1]; resource.setrlimit(resource.RLIMIT_NOFILE,(most,most))
ready,done=os.pipe(); each=min(15000,most-64); children=[]
for _ in range(-(-30000//each)):
  pid=os.fork()
  if pid: children.append(pid); continue
  while c.socketpair(1,1,0,pair)==0 and pair[1]<each: pass
  os.write(done,b'x'); time.sleep(20); os._exit(0)
for _ in children: os.read(ready,1)
time.sleep(0.5); print('yes')
for pid in children: os.kill(pid,signal.SIGKILL)
X`,
      succeeded: says('yes'),
    },
    {
      name: 'exceed the memory limit with a tmpfs',
      limits: { memoryMb: 100 },
      script: () => 'f=/dev/shm/rf-fill-$$; head -c 300M /dev/zero > $f && sleep 0.5 && echo yes; rm -f $f',
      succeeded: says('yes'),
    },
  ],
  'limit.cpu': [
    {
      name: 'exceed the CPU limit',
      // Far enough apart that a busy machine, too, tells one from the other.
      limits: { cpus: 0.05 },
      script: ({ probe }) => `${probe} spin 2000`,
      succeeded: (result) => Number(stdout(result)) > 220,
    },
  ],
  'limit.pids': [
    {
      name: 'exceed the process limit',
      limits: { pids: 40 },
      script: ({ probe }) => `${probe} fork 200`,
      succeeded: (result) => Number(stdout(result)) > 40,
    },
    {
      name: 'exceed the process limit with threads',
      limits: { pids: 40 },
      script: () => `python3 - <<'X'
import threading,time
threading.stack_size(65536)
try:
  for _ in range(200): threading.Thread(target=time.sleep,args=(1,),daemon=True).start()
except RuntimeError: pass
time.sleep(0.3); print(threading.active_count())
X`,
      succeeded: (result) => Number(stdout(result)) > 40,
    },
  ],
  'limit.disk': [
    {
      name: 'write one large file',
      limits: { diskMb: 20 },
      script: () => 'head -c 80M /dev/zero > big',
      succeeded: (_, __, workspace) => megabytesIn(workspace) > 40,
    },
    {
      name: 'write many files',
      limits: { diskMb: 20 },
      script: () => 'for i in $(seq 120); do head -c 1M /dev/zero > f$i; sleep 0.01; done',
      succeeded: (_, __, workspace) => megabytesIn(workspace) > 60,
    },
    {
      name: 'keep removed files open in a socket queue',
      limits: { diskMb: 20 },
      script: () => `python3 - <<'X'
import array,os,socket,time
pairs=[];kept=0
for i in range(20):
  a,b=socket.socketpair(); pairs.append((a,b))
  f=os.open(f'f{i}',os.O_RDWR|os.O_CREAT); os.unlink(f'f{i}')
  for _ in range(8): os.write(f,b'x'*1048576); time.sleep(0.002)
  a.sendmsg([b'x'],[(socket.SOL_SOCKET,socket.SCM_RIGHTS,array.array('i',[f]))]); os.close(f); time.sleep(0.06)
for a,b in pairs:
  f=array.array('i',b.recvmsg(1,64)[1][0][2])[0]; kept+=os.fstat(f).st_blocks*512
print(kept>>20)
X`,
      succeeded: (result) => Number(stdout(result)) > 60,
    },
    {
      name: 'open more files than the agent can track',
      limits: { diskMb: 90 },
      script: () => `mkdir many; python3 - <<'X'
import os,time
big=[os.open(f'big{i}',os.O_WRONLY|os.O_CREAT) for i in range(4)]
for i in range(16500): os.close(os.open(f'many/{i}',os.O_WRONLY|os.O_CREAT))
for f in big:
  for _ in range(60): os.write(f,b'x'*1048576); time.sleep(0.001)
X`,
      succeeded: (_, __, workspace) => megabytesIn(workspace) > 150,
    },
    {
      // Connects to a full listener, while another process makes the socket blocking: the agent must not wait there.
      name: 'write while the agent waits in a connection',
      limits: { diskMb: 20 },
      script: () => `python3 - <<'X'
import fcntl,mmap,os,signal,socket,struct,time
files=[os.open(f'big{i}',os.O_WRONLY|os.O_CREAT) for i in range(20)]
l=socket.socket(socket.AF_UNIX); l.bind('full'); l.listen(0)
held=[socket.socket(socket.AF_UNIX) for _ in range(4)]
for c in held:
  c.setblocking(False); c.connect_ex('full')
s=held[-1]; s.setsockopt(socket.SOL_SOCKET,socket.SO_SNDTIMEO,struct.pack('ll',9,0))
beat=mmap.mmap(-1,8); children=[]
def child(work):
  pid=os.fork()
  if pid: return children.append(pid)
  while True: work()
def toggle():
  fcntl.fcntl(s,fcntl.F_SETFL,os.O_NONBLOCK); fcntl.fcntl(s,fcntl.F_SETFL,0)
def ping():
  try: os.rmdir('nothing')
  except OSError: pass
  beat[0]=(beat[0]+1)%256; time.sleep(0.001)
child(toggle); child(ping)
for _ in range(40):
  child(lambda: s.connect_ex('full')); before=beat[0]; time.sleep(0.04)
  if beat[0]==before: break
for f in files:
  for _ in range(19): os.write(f,b'x'*1048576); time.sleep(0.0005)
for pid in children: os.kill(pid,signal.SIGKILL)
X`,
      succeeded: (_, __, workspace) => megabytesIn(workspace) > 200,
    },
    {
      name: 'fill the private /tmp',
      limits: { diskMb: 20 },
      script: () => 'd=$(mktemp -d); head -c 60M /dev/zero > $d/fill; stat -c %s $d/fill; rm -rf $d',
      succeeded: (result) => Number(stdout(result)) > 41943040,
    },
  ],
  'limit.output': [
    {
      name: 'print more than the output limit',
      limits: { outputBytes: 100_000 },
      script: () => 'head -c 3000000 /dev/zero',
      succeeded: (result) => result.stdout.length > 100_000,
    },
  ],
} satisfies Partial<Record<Guarantee, readonly Attack[]>>
