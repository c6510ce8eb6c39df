"""What the tests of the server ask, and how they read what it says."""

import json

HERE = "http://127.0.0.1:8000"


def body(task, **more):
    return {"model": "solver", "messages": [{"role": "user", "content": task.prompt}], "temperature": 0, **more}


def ask(client, path, **body_of):
    answer = client.post(f"/v1/{path}", json=body_of)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(text):
    found = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert found[-1] == "[DONE]"
    return [json.loads(line) for line in found[:-1]]
