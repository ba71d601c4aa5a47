# Makes the kernel keep as much as it will in buffers that nobody reads; prints how many MiB it keeps, again and again.
import fcntl, os, socket, sys

F_SETPIPE_SZ = 1031
PIECE = bytes(1 << 14)
kind, kept, held = sys.argv[1], 0, []


def until_full(send):
    count = 0
    try:
        while True:
            count += send(PIECE)
    except OSError:
        return count


def pair():
    if kind == "pipe":
        ends = os.pipe()
        os.set_blocking(ends[1], False)
        try:
            fcntl.fcntl(ends[1], F_SETPIPE_SZ, 1 << 20)
        except OSError:
            pass
        return ends, lambda piece: os.write(ends[1], piece)
    if kind == "tcp":
        sender = socket.create_connection(listener.getsockname())
        receiver = listener.accept()[0]
    elif kind == "udp":
        receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        receiver.bind(("127.0.0.1", 0))
        sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sender.connect(receiver.getsockname())
    else:
        sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM if kind == "unix" else socket.SOCK_DGRAM)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    sender.setblocking(False)
    receiver.setblocking(False)
    return (sender, receiver), sender.send


if kind == "tcp":
    listener = socket.create_server(("127.0.0.1", 0), backlog=100)
for _ in range(480):
    # Enough to see that nothing limits it.
    if kept > 256 << 20:
        break
    try:
        ends, send = pair()
    except OSError:
        break
    held.append(ends)
    if kind == "udp":
        # What does not fit is dropped without a word.
        for _ in range(64):
            send(PIECE)
    else:
        kept += until_full(send)
        print(kept >> 20, flush=True)
if kind == "udp":
    for _, receiver in held:
        try:
            while True:
                kept += len(receiver.recv(len(PIECE)))
        except OSError:
            pass
print(kept >> 20, flush=True)
