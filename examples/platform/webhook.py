"""A webhook that answers the messages of a messenger with the replies of the server's /v1/chat/completions."""

import hmac
import json
import pathlib
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

API = "http://127.0.0.1:8000/v1/chat/completions"
KEY = pathlib.Path("api-keys").read_text().split()[0]
SECRET = pathlib.Path("webhook-secret").read_bytes().strip()
turns = {}  # the last messages of each conversation


def reply_to(conversation, text):
    messages = [*turns.get(conversation, []), {"role": "user", "content": text}]
    body = json.dumps({"messages": messages, "user": conversation}).encode()
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(API, body, headers), timeout=70) as response:
        reply = json.load(response)["choices"][0]["message"]["content"]
    turns[conversation] = [*messages, {"role": "assistant", "content": reply}][-6:]
    return reply


class Webhook(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        expected, given = hmac.new(SECRET, body, "sha256").hexdigest(), self.headers.get("X-Signature", "")
        if not hmac.compare_digest(expected.encode(), given.encode()):
            self.send_error(401)
            return
        message = json.loads(body)  # in the form of your messenger
        try:
            reply = reply_to(message["conversation"], message["text"])
        except OSError as error:  # most messengers then send the message again
            self.send_error(503, str(error))
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"reply": reply}, ensure_ascii=False).encode())


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 9000), Webhook).serve_forever()
