import { type BuiltInRule, words } from './rule.ts'

const deny = (
  id: BuiltInRule['id'],
  programs: string,
  why: string,
  match: readonly string[],
): BuiltInRule => ({
  id,
  prefix: [words(programs)],
  action: 'deny',
  why,
  hard: true,
  match,
})

/** Programs that need or grant privileges on the machine. They never run; no policy can allow them. */
export const PRIVILEGED: readonly BuiltInRule[] = [
  deny(
    'privilege/become',
    'sudo su doas pkexec run0 runuser gksudo gksu sudoedit visudo please sudo_logsrvd',
    'changes privileges',
    ['sudo ls', '/usr/bin/sudo -E bash'],
  ),
  deny(
    'privilege/mount',
    'umount fusermount fusermount3 pivot_root switch_root losetup swapon swapoff cryptsetup dmsetup lvm lvremove vgremove pvremove mdadm zpool zfs btrfs',
    'changes what is mounted',
    ['umount /mnt'],
  ),
  deny(
    'privilege/kernel',
    'insmod rmmod modprobe kmod depmod sysctl kexec bpftool bpftrace setcap getcap capsh auditctl ausearch augenrules setenforce semanage setsebool apparmor_parser aa-disable aa-complain aa-teardown kpatch dkms',
    'changes the kernel or its guards',
    ['sysctl -w a=b', 'auditctl -D'],
  ),
  deny(
    'privilege/firewall',
    'iptables ip6tables iptables-save iptables-restore ip6tables-restore nft ufw firewall-cmd ebtables arptables ipset pfctl tc wg wg-quick brctl',
    'changes the firewall',
    ['iptables -F OUTPUT'],
  ),
  deny(
    'privilege/accounts',
    'useradd userdel usermod groupadd groupdel groupmod passwd chpasswd adduser deluser chsh chfn vipw vigr gpasswd newusers chage dscl htpasswd',
    'changes accounts',
    ['useradd x'],
  ),
  deny(
    'privilege/namespaces',
    'unshare nsenter chroot bwrap systemd-nspawn runc crun runsc ctr crictl firecracker jailer lxc lxc-attach lxc-execute lxc-start machinectl newuidmap newgidmap',
    'creates or enters namespaces',
    ['nsenter -t 1 -m sh'],
  ),
  deny(
    'privilege/power',
    'reboot shutdown poweroff halt init telinit kexec pm-suspend',
    'stops the machine',
    ['reboot', 'shutdown -h now'],
  ),
  deny(
    'privilege/boot',
    'grub-install grub-mkconfig update-grub efibootmgr bootctl update-initramfs dracut mkinitcpio flashrom fwupdmgr nvram bless',
    'changes how the machine starts',
    ['efibootmgr -c'],
  ),
  deny('privilege/clock', 'hwclock ntpdate chronyc adjtimex', 'changes the clock', ['hwclock -w']),
  deny(
    'privilege/schedule',
    'at batch anacron atrm systemd-run',
    'runs commands later, outside this session',
    ['at now'],
  ),
]

/** Programs that destroy disks or file systems. */
export const DISKS: readonly BuiltInRule[] = [
  deny(
    'destructive/disk',
    'mkfs mke2fs mkswap mkdosfs mkntfs newfs wipefs fdisk sfdisk cfdisk gdisk sgdisk parted partprobe blkdiscard hdparm sdparm nvme badblocks debugfs tune2fs resize2fs e2image xfs_admin xfs_repair fsck e2fsck dosfsck diskutil diskpart nbd-client qemu-nbd',
    'changes disks directly',
    ['mkfs.ext4 /dev/sda1', 'sgdisk --zap-all /dev/sda', 'wipefs -a /dev/sda'],
  ),
]
