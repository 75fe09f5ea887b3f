import type { Plan, WritableRoot } from '../model/plan.ts'

/** The size of `/run` in a writable root, in memory. */
export const RUN_BYTES = 16 * 1024 * 1024

/** What guest/agent/launch/writable_root.c assembles before anything runs in a sandbox. Pure. */
export const rootOperations = (plan: Plan, { ids, layers, disk }: WritableRoot): string[] => [
  ...['ids', String(ids.stored), String(ids.first), String(ids.count), ids.locks],
  ...['disk', disk.real, disk.dev, disk.ino],
  ...layers.flatMap(({ target, lower }) => [
    ...lower.flatMap(({ real, dev, ino }) => ['lower', real, dev, ino]),
    'layer',
    target,
  ]),
  ...plan.own.flatMap((target) => ['own', target]),
  ...[...plan.mounts, ...plan.unixSockets]
    .sort((a, b) => a.target.length - b.target.length)
    .flatMap((mount) => [
      ...['mount', mount.stored ? (mount.mode === 'ro' ? 'stored-ro' : 'stored') : mount.mode],
      ...[mount.real, mount.dev, mount.ino, mount.target],
    ]),
]
