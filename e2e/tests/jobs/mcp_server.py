"""An MCP server for the tests; its argument says what is wrong with it."""

import base64
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODE = sys.argv[1] if len(sys.argv) > 1 else "plain"
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\nnot much of a picture").decode()


def tool(name, schema=None, **more):
    return {"name": name, "description": f"Does {name}.", "inputSchema": schema or {"type": "object"}, **more}


def tools():
    if MODE == "many":
        return [tool(f"tool{number:03}") for number in range(200)]
    if MODE == "bad-schema":
        either = {"anyOf": [{"properties": {"a": {"items": [{"type": "string"}]}}, "required": ["a"]}, {"required": ["b"]}]}
        lost = {"properties": {"a": {"$ref": "#/$defs/Gone"}}}
        bad = [tool("text", {"type": "string"}), {"name": "list", "inputSchema": []}, tool("lost", lost)]
        return [tool("good"), tool("either", either), *bad]
    names = ["good", "picture", "fails", "slow", "die", "grow", "environment"]
    if os.path.exists("grown"):
        names.append("grown")
    return [tool(name) for name in names]


def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(words, **more):
    return {"content": [{"type": "text", "text": words}], **more}


def call(name, arguments):
    with open("calls", "a") as log:
        log.write(f"{name}\n")
    if name == "picture":
        return {"content": [{"type": "image", "mimeType": "image/png", "data": PIXEL}]}
    if name == "fails":
        return text("it went wrong", isError=True)
    if name == "slow":
        open("slow-began", "w").close()
        deadline = time.time() + 120
        while not os.path.exists("go-on") and time.time() < deadline:
            time.sleep(0.05)
        return text("slow but done")
    if name == "die":
        print("good bye", file=sys.stderr, flush=True)
        os._exit(3)
    if name == "grow":
        open("grown", "w").close()
        send({"method": "notifications/tools/list_changed"})
        return text("grown")
    if name == "environment":
        return text(os.environ.get("GREETING", "nothing"))
    return text(f"{name} {json.dumps(arguments, sort_keys=True)}")


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "test", "version": "1"},
        }
    if method == "tools/list":
        # Returns the tools in two pages.
        listed = tools()
        half = (len(listed) + 1) // 2
        if params.get("cursor"):
            return {"tools": listed[half:]}
        return {"tools": listed[:half], "nextCursor": "second"}
    if method == "tools/call":
        return call(params["name"], params.get("arguments") or {})
    return {}


class Web(BaseHTTPRequestHandler):
    """Streamable HTTP: calls are answered by a stream of events, everything else by JSON."""

    protocol_version = "HTTP/1.1"

    def reply(self, status, kind="text/plain", body=b""):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Mcp-Session-Id", "session-1")
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(405)

    def do_DELETE(self):
        self.reply(200)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers.get("Authorization")
        if key != "Bearer key-of-the-hub":
            return self.reply(401, body=f"{key} is no key of mine".encode())
        message = json.loads(body)
        if "id" not in message:
            return self.reply(202)
        result = answer(message["method"], message.get("params") or {})
        text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
        if message["method"] == "tools/call":
            return self.reply(200, "text/event-stream", f"event: message\ndata: {text}\n\n".encode())
        self.reply(200, "application/json", text.encode())

    def log_message(self, *_):
        pass


def main():
    if MODE == "http":
        server = ThreadingHTTPServer(("127.0.0.1", 0), Web)
        print(server.server_address[1], flush=True)
        server.serve_forever()
    if MODE == "silent":
        time.sleep(600)
    if MODE == "broken":
        sys.exit("no such luck")
    if MODE == "noise":
        print("Welcome to the noisy server!\n{not json", flush=True)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = answer(message["method"], message.get("params") or {})
        if MODE == "noise":
            print("a line of noise", flush=True)
        send({"id": message["id"], "result": result})


main()
