//! Trying to get out. Each attempt runs as a step; it must be refused, and nothing outside may have changed.

use std::fs;

use e2e::{Server, shell};
use serde_json::json;

/// Runs one attempt; it prints `ESCAPED` where it succeeded. Python's `libc` and `expect_error` are at hand.
#[track_caller]
fn assert_refused(attempts: &str) {
    let server = Server::start();
    let prelude = "import ctypes, errno, os, socket, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def expect_error(name, result):
    if result != -1:
        print('ESCAPED', name, result)
def expect_refusal(name, run):
    try:
        print('ESCAPED', name, run())
    except OSError as error:
        print('refused', name, errno.errorcode.get(error.errno))
";
    let job = server.schedule_steps(&[
        json!({"tool": "python", "code": format!("{prelude}{attempts}\nprint('all tried')")}),
    ]);
    let mut events = job.follow();
    events.until_end();
    let output = events.output("step-1.1", "");
    assert!(output.contains("all tried"), "the attempts did not come to their end: {output}");
    assert!(!output.contains("ESCAPED"), "{output}");
    server.assert_nothing_left();
}

#[test]
fn mounting_is_refused() {
    assert_refused(
        "expect_error('tmpfs', libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))
expect_error('proc', libc.mount(b'none', b'/tmp', b'proc', 0, None))
expect_error('bind', libc.mount(b'/', b'/tmp', None, 4096, None))
expect_error('remount', libc.mount(b'none', b'/usr', None, 32 | 4096, None))
expect_error('umount', libc.umount2(b'/proc', 2))
expect_error('fsopen', libc.syscall(430, b'tmpfs', 0))
expect_error('open_tree', libc.syscall(428, -100, b'/', 1))
expect_error('pivot_root', libc.syscall(155, b'/tmp', b'/tmp'))
expect_error('chroot', libc.chroot(b'/tmp'))",
    );
}

#[test]
fn writing_to_proc_and_sys_is_refused() {
    let core_pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    assert_refused(
        "for path in ['/proc/sys/kernel/core_pattern', '/proc/sys/kernel/hostname', '/proc/sys/vm/drop_caches', '/proc/sysrq-trigger',
             '/proc/sys/fs/binfmt_misc/register', '/sys/kernel/uevent_helper', '/sys/fs/cgroup/release_agent', '/proc/1/oom_score_adj',
             '/proc/sys/kernel/modprobe', '/sys/power/state']:
    expect_refusal(path, lambda: open(path, 'w').write('x'))
for path in ['/proc/kcore', '/proc/kmsg', '/dev/mem', '/dev/kmsg', '/sys/kernel/debug/x']:
    # An empty file in its place is as good as none.
    expect_refusal(path, lambda: open(path, 'rb').read(1) or os.stat(path + '/none'))",
    );
    assert_eq!(fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap(), core_pattern);
}

#[test]
fn control_groups_cannot_be_changed() {
    assert_refused(
        "import glob
for path in glob.glob('/sys/fs/cgroup/**', recursive=True):
    if path.endswith(('release_agent', 'cgroup.procs', 'memory.limit_in_bytes', 'memory.max', 'pids.max', 'notify_on_release')):
        expect_refusal(path, lambda: open(path, 'w').write('1'))
expect_refusal('mkdir', lambda: os.mkdir('/sys/fs/cgroup/mine'))",
    );
}

#[test]
fn device_nodes_cannot_be_made() {
    assert_refused(
        "expect_refusal('sda', lambda: os.mknod('disk', 0o660 | 0o060000, os.makedev(8, 0)))
expect_refusal('vda', lambda: os.mknod('disk', 0o660 | 0o060000, os.makedev(253, 0)))
expect_refusal('mem', lambda: os.mknod('mem', 0o660 | 0o020000, os.makedev(1, 1)))
allowed = {'null', 'zero', 'full', 'random', 'urandom', 'tty', 'pts', 'ptmx', 'shm', 'fd', 'stdin', 'stdout', 'stderr', 'console', 'mqueue', 'core'}
extra = set(os.listdir('/dev')) - allowed
if extra: print('ESCAPED devices', extra)",
    );
}

#[test]
fn processes_outside_can_neither_be_seen_nor_traced_nor_signalled() {
    let witness = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let pid = witness.id();
    assert_refused(&format!(
        "expect_error('ptrace', libc.ptrace(16, {pid}, 0, 0))
expect_error('ptrace init', libc.ptrace(16, 1, 0, 0))
expect_error('kill', libc.kill({pid}, 9))
expect_error('pidfd_open', libc.syscall(434, {pid}, 0))
expect_error('process_vm_readv', libc.syscall(310, 1, None, 0, None, 0, 1))
if os.path.exists('/proc/{pid}/cmdline') and b'sleep' in open('/proc/{pid}/cmdline', 'rb').read(): print('ESCAPED saw it')
for name in ['mem', 'environ', 'root/etc/shadow', 'fd/0', 'cwd/x']:
    expect_refusal('init ' + name, lambda: open('/proc/1/' + name, 'rb').read(1))"
    ));
    let mut witness = witness;
    assert!(witness.try_wait().unwrap().is_none(), "a process outside was killed");
    witness.kill().unwrap();
    witness.wait().unwrap();
}

#[test]
fn new_namespaces_are_refused() {
    assert_refused(
        "for name, flag in {'user': 0x10000000, 'mount': 0x20000, 'net': 0x40000000, 'pid': 0x20000000, 'ipc': 0x8000000,
                    'uts': 0x4000000, 'cgroup': 0x2000000, 'time': 0x80}.items():
    expect_error('unshare ' + name, libc.unshare(flag))
    if name != 'time': # That bit is part of the signal in the old call.
        expect_error('clone ' + name, libc.syscall(56, flag | 17, 0, 0, 0, 0))
for name in os.listdir('/proc/self/ns'):
    try:
        descriptor = os.open('/proc/1/ns/' + name, os.O_RDONLY)
    except OSError:
        continue
    expect_error('setns ' + name, libc.setns(descriptor, 0))
expect_error('clone3', libc.syscall(435, struct.pack('QQQQQQQQ', 0x10000000, 0, 0, 0, 17, 0, 0, 0), 64))",
    );
}

#[test]
fn raw_and_packet_sockets_are_refused() {
    assert_refused(
        "expect_refusal('raw', lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
expect_refusal('raw6', lambda: socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58))
expect_refusal('packet', lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
expect_refusal('vsock', lambda: socket.socket(40, socket.SOCK_STREAM))
expect_refusal('alg', lambda: socket.socket(38, socket.SOCK_SEQPACKET))
expect_refusal('kernel route', lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12))
devices = [name for _, name in socket.if_nameindex()]
if devices != ['lo']: print('ESCAPED devices', devices)",
    );
}

#[test]
fn abstract_sockets_of_the_host_cannot_be_reached() {
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let name = format!("caisson-e2e-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    assert_refused(&format!(
        "expect_refusal('abstract', lambda: socket.socket(socket.AF_UNIX).connect('\\0{name}'))
for path in ['/run/dbus/system_bus_socket', '/run/systemd/private', '/var/run/docker.sock', '/run/caisson/guest.sock']:
    expect_refusal(path, lambda: socket.socket(socket.AF_UNIX).connect(path))"
    ));
}

#[test]
fn privileges_cannot_be_gained() {
    assert_refused(
        "expect_refusal('setuid', lambda: os.setuid(0))
expect_refusal('setgid', lambda: os.setgid(0))
expect_refusal('setgroups', lambda: os.setgroups([0]))
status = open('/proc/self/status').read()
for line in status.splitlines():
    name, _, value = line.partition(':')
    if name in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb') and int(value, 16): print('ESCAPED', line)
    if name == 'NoNewPrivs' and value.strip() != '1': print('ESCAPED', line)
    if name == 'Seccomp' and value.strip() != '2': print('ESCAPED', line)
for program in ['su', 'sudo', 'mount', 'passwd', 'newuidmap', 'chsh']:
    for folder in ['/usr/bin/', '/bin/']:
        if os.path.exists(folder + program):
            result = subprocess.run([folder + program, '--help'], capture_output=True)
print('euid', os.geteuid())
if os.geteuid() == 0: print('ESCAPED is root')
os.chmod('/workspace', 0o777)
subprocess.run('cp /bin/sh mine; chmod u+s mine; ./mine -p -c \"[ $(id -u) != 0 ] || echo ESCAPED setuid copy\"', shell=True)",
    );
}

#[test]
fn the_guests_own_program_cannot_be_overwritten() {
    assert_refused(
        "for path in ['/proc/1/exe', '/proc/self/exe', '/usr/bin/python3', '/bin/sh', '/etc/passwd', '/etc/hosts', '/usr/x', '/x']:
    expect_refusal(path, lambda: os.open(path, os.O_WRONLY | (os.O_CREAT if path.endswith('x') else 0)))
expect_refusal('unlink', lambda: os.unlink('/etc/passwd'))
expect_refusal('rename', lambda: os.rename('/usr', '/old'))",
    );
}

#[test]
fn no_file_descriptor_of_the_host_leaks_in() {
    assert_refused(
        "for name in os.listdir('/proc/self/fd'):
    try:
        target = os.readlink('/proc/self/fd/' + name)
    except OSError:
        continue
    if int(name) > 2 and not target.startswith(f'/proc/{os.getpid()}/fd'): print('ESCAPED fd', name, target)
    if int(name) <= 2 and not target.startswith(('pipe:', '/dev/null', 'socket:', '/workspace', '/run/caisson')): print('ESCAPED fd', name, target)",
    );
}

#[test]
fn system_calls_that_reach_into_the_kernel_are_refused() {
    assert_refused(
        "for name, number in {'bpf': 321, 'perf_event_open': 298, 'userfaultfd': 323, 'io_uring_setup': 425, 'keyctl': 250, 'add_key': 248,
                     'kexec_load': 246, 'init_module': 175, 'finit_module': 313, 'reboot': 169, 'swapon': 167, 'acct': 163,
                     'settimeofday': 164, 'open_by_handle_at': 304, 'quotactl': 179, 'syslog': 103, 'iopl': 172, 'lookup_dcookie': 212}.items():
    expect_error(name, libc.syscall(number, 0, 0, 0, 0, 0))
expect_error('TIOCSTI', libc.ioctl(0, 0x5412, b'x'))
expect_error('personality', libc.syscall(135, 0x0400000))",
    );
}

#[test]
fn nothing_of_the_host_can_be_written() {
    let server = Server::start();
    let find = "find / -xdev -writable -not -path '/workspace*' -not -path '/app*' -not -path '/proc/*' -not -type l 2>/dev/null | sort";
    let job = server.schedule_steps(&[shell(find), shell("awk '$4 ~ /^rw/ {print $2}' /proc/mounts")]);
    let mut events = job.follow();
    events.until_end();
    for line in events.output("step-1.1", "stdout").lines() {
        let allowed = ["/tmp", "/var/tmp", "/home", "/dev", "/run/user", "/run/lock"];
        assert!(allowed.iter().any(|place| line.starts_with(place)), "{line} can be written");
    }
}

#[test]
fn the_journal_of_the_guest_is_out_of_reach() {
    assert_refused(
        "for path in ['/run/caisson', '/run/caisson/journal', '/run/caisson/guest']:
    expect_refusal('list ' + path, lambda: os.listdir(path))
    expect_refusal('write ' + path, lambda: open(path + '/x', 'w'))",
    );
}

#[test]
fn secrets_and_homes_of_the_host_are_not_visible_inside() {
    let server = Server::start();
    let look = "for path in /etc/shadow /root /home /var/lib /opt /srv /mnt /boot /etc/ssh; do \
        [ -r $path ] && ls -A $path 2>/dev/null | sed \"s|^|$path: |\"; done; true";
    let job = server
        .schedule_steps(&[shell(look), shell("ls / /etc; cat /etc/passwd; ls /proc | grep -c '^[0-9]'")]);
    let mut events = job.follow();
    events.until_end();
    let seen = events.output("step-1.1", "stdout");
    assert!(!seen.contains("shadow") && !seen.contains(".ssh"), "{seen}");
    let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let job = server.schedule_steps(&[shell("hostname 2>/dev/null || cat /proc/sys/kernel/hostname")]);
    let mut events = job.follow();
    events.until_end();
    assert_ne!(events.output("step-1.1", "stdout"), hostname);
}
