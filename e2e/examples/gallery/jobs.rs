//! Jobs of every kind on a real server: complete, failed, hostile, running, waiting for a person.

use std::collections::BTreeMap;

use e2e::{Options, Server, default_images, shell};
use model::scripted::{Order, Script, ScriptedAnswer, ScriptedServer};
use serde_json::{Value, json};

/// A server with jobs in every state.
pub(crate) struct Gallery {
    pub(crate) server: Server,
    _models: Vec<ScriptedServer>,
    /// Job ids by the name of what they show.
    pub(crate) jobs: BTreeMap<&'static str, String>,
}

/// Starts the server and waits until every job has reached its state.
pub(crate) fn fill() -> Gallery {
    let config = "[model]\nlocal = false\n".to_owned();
    let server = Server::start_with(Options { config, images: Some(default_images()), ..Options::default() });
    let mut filled = Gallery { server, _models: Vec::new(), jobs: BTreeMap::new() };
    add_small_jobs(&filled.server);
    filled.steps();
    filled.agents();
    filled
}

fn add_small_jobs(server: &Server) {
    let names = [
        "nightly backup",
        "resize pictures",
        "lint the documentation",
        "count words",
        "release notes",
        "warm the cache",
    ];
    for name in names.iter().cycle().take(24) {
        server
            .schedule(&json!({"name": name, "image": "host", "steps": [shell("true"), shell("echo done")]}));
    }
}

impl Gallery {
    fn add(&mut self, name: &'static str, body: &Value, state: &str) {
        let job = self.server.schedule(body);
        let id = job.id.clone();
        e2e::wait_until(&format!("{name} is {state}"), || {
            self.server.job(&id).status()["detail"].as_str().is_some_and(|detail| detail.starts_with(state))
        });
        self.jobs.insert(name, id);
    }

    /// Adds a job whose scripted model gives these answers.
    fn add_agent(&mut self, name: &'static str, mut body: Value, answers: Vec<ScriptedAnswer>, state: &str) {
        let script = Script { order: Order::Turns, model: "scripted".into(), ..Script::of(answers) };
        let model = ScriptedServer::start_on_thread(script).expect("a scripted model");
        body["model"] = json!(format!("http://{}/v1", model.address()));
        self._models.push(model);
        self.add(name, &body, state);
    }

    fn steps(&mut self) {
        let hostile = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>";
        let print = format!(
            "echo \"{}\"; head -c 1000000 /dev/zero | tr '\\0' x; exit 3",
            hostile.replace('"', "\\\"")
        );
        self.add("hostile", &json!({"name": hostile, "image": "host", "steps": [shell(&print)]}), "failed");
        let failing = "printf '\\033[1mrunning 3 tests\\033[0m\\n\\033[32m✓\\033[0m reads a file\\n\\033[32m✓\\033[0m writes a file\\n\
                       \\033[31m✗\\033[0m refuses a folder\\n    expected \\033[33m422\\033[0m, got \\033[33m500\\033[0m\\n'; exit 1";
        self.add(
            "failed",
            &json!({"name": "test the upload service", "image": "host", "steps": [shell("echo compiling"), shell(failing)]}),
            "failed",
        );
        self.add(
            "notebook",
            &json!({"name": "weather in a notebook", "image": "default", "steps": [
                {"tool": "write_file", "path": "weather.csv", "content": "month,rain,sun\nJan,61,52\nFeb,48,75\nMar,53,121\nApr,44,168\nMay,67,201\n"},
                {"tool": "python", "code": "import pandas as pd\nframe = pd.read_csv('weather.csv')\nframe"},
                {"tool": "python", "code": "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(figsize=(6, 3))\nax.bar(frame.month, frame.rain, color='#0b6b6e')\nax.set_title('Rain in mm')\nplt.show()"},
                {"tool": "python", "code": "frame['rian'].mean()", "continue_on_error": true}
            ]}),
            "complete",
        );
    }

    fn agents(&mut self) {
        let story = crate::jobs::story(&[]);
        self.add_agent(
            "done",
            json!({"task": "Build a page that shows the rain of the last months as a chart, with a test", "image": "default",
                "budget": {"turns": 30, "money_usd": 2.0}, "labels": {"project": "weather"}}),
            story,
            "complete",
        );
        let ask = ScriptedAnswer {
            text: "Both would work; the first needs no server.".into(),
            ..call(
                "ask_user",
                json!({"question": "Where shall the readings be kept?", "options": ["SQLite", "PostgreSQL", "plain files"]}),
            )
        };
        self.add_agent(
            "question",
            json!({"task": "Keep the readings of my sensors", "image": "default"}),
            vec![ask],
            "paused: question",
        );
        let plan = call(
            "plan",
            json!({"items": ["Read the code that answers uploads", "Write a test that fails", "Mend it", "Run all tests"]}),
        );
        self.add_agent(
            "plan",
            json!({"task": "Uploads of folders crash the service; mend that", "image": "default", "approve_plan": true}),
            vec![plan],
            "paused: approval",
        );
        let danger = call("shell", json!({"command": "git push --force origin main"}));
        self.add_agent(
            "command",
            json!({"task": "Publish the new version", "image": "default", "approval": "ask"}),
            vec![danger],
            "paused: approval",
        );
        let work = [
            "curl -sS -m 5 https://api.example.org/rain || true",
            "(python3 -m http.server 8080 >/dev/null 2>&1 &); sleep 1; echo serving",
            "while true; do printf '\\033[32m✓\\033[0m %s the page is up, \\033[36m4 bars\\033[0m\\n' \"$(date +%T)\"; sleep 4; done",
        ];
        let job = json!({"task": "Build a page that shows the rain of the last months as a chart, and keep it running", "image": "default",
            "budget": {"turns": 40, "money_usd": 5.0}});
        self.add_agent("running", job, crate::jobs::story(&work), "running");
        let id = self.jobs["running"].clone();
        e2e::wait_until("it is at work", || {
            self.server.get(&format!("/v1/jobs/{id}/log")).text().contains("the page is up")
        });
        let browser =
            "chromium --new-window --window-size=900,600 --window-position=190,70 http://127.0.0.1:8080/";
        self.server.post(&format!("/v1/jobs/{id}/input"), &json!({"action": "launch", "command": browser}));
        let window = json!({"action": "wait", "window": "Rain", "seconds": 60});
        self.server.post(&format!("/v1/jobs/{id}/input"), &window);
    }
}

/// A model answer that calls one tool.
fn call(name: &str, arguments: Value) -> ScriptedAnswer {
    ScriptedAnswer::calls(&[(name, arguments)])
}

const PAGE: &str = "<!doctype html>\n<html lang=\"en\">\n<head>\n  <meta charset=\"utf-8\">\n  <title>Rain</title>\n  <style>\n    body { font-family: sans-serif; margin: 3rem; }\n    .bar { background: #0b6b6e; width: 4rem; display: inline-block; margin-right: 1rem; }\n  </style>\n</head>\n<body>\n  <h1>Rain in mm</h1>\n  <div><span class=\"bar\" style=\"height: 244px\"></span><span class=\"bar\" style=\"height: 192px\"></span><span class=\"bar\" style=\"height: 212px\"></span><span class=\"bar\" style=\"height: 176px\"></span></div>\n</body>\n</html>\n";

/// A conversation that uses a bit of everything, followed by these commands, or by the end of the job.
fn story(commands: &[&str]) -> Vec<ScriptedAnswer> {
    let items = ["Read the data", "Write the page", "Check it with a test"];
    let plan = |at: usize| {
        let status = |index: usize| match index.cmp(&at) {
            std::cmp::Ordering::Less => "done",
            std::cmp::Ordering::Equal => "in_progress",
            std::cmp::Ordering::Greater => "pending",
        };
        let items: Vec<Value> = items
            .iter()
            .enumerate()
            .map(|(index, text)| json!({"text": text, "status": status(index)}))
            .collect();
        ("plan", json!({ "items": items }))
    };
    let mut answers = vec![
        ScriptedAnswer {
            reasoning: "The person wants a chart. One file without a build is enough; a test can count the bars.".into(),
            text: "I will read the data first, then write one page without a build step, and check it with a small test.".into(),
            ..ScriptedAnswer::calls(&[plan(0)])
        },
        call("write_file", json!({"path": "data/rain.csv", "content": "month,rain\nJan,61\nFeb,48\nMar,53\nApr,44\n"})),
        call("python", json!({"code": "import pandas as pd\nframe = pd.read_csv('data/rain.csv')\nframe"})),
        call("python", json!({"code": "import matplotlib.pyplot as plt\nfig, ax = plt.subplots(figsize=(6, 2.6))\nax.bar(frame.month, frame.rain, color='#0b6b6e')\nax.set_title('Rain in mm')\nplt.show()"})),
        ScriptedAnswer { text: "Four months. Now the page.".into(), ..ScriptedAnswer::calls(&[plan(1), ("write_file", json!({"path": "index.html", "content": PAGE}))]) },
        call("edit_file", json!({"path": "index.html", "old": "<h1>Rain in mm</h1>", "new": "<h1>Rain, January to April</h1>\n  <p>In millimetres.</p>"})),
        ScriptedAnswer { text: "The page is there. A test that counts the bars:".into(), ..ScriptedAnswer::calls(&[plan(2), ("write_file", json!({"path": "test_page.py", "content": "import re\n\n\ndef test_every_month_has_a_bar():\n    page = open('index.html').read()\n    assert len(re.findall('class=\"bar\"', page)) == 4\n"}))]) },
        call("shell", json!({"command": "printf '\\033[1m== 1 test ==\\033[0m\\n'; python3 -c \"import test_page; test_page.test_every_month_has_a_bar()\" && printf '\\033[32m✓ every month has a bar\\033[0m\\n'"})),
    ];
    // The last command repeats for longer than any gallery run, however long a single call may take.
    let repeated = commands.last().into_iter().cycle().take(if commands.is_empty() { 0 } else { 300 });
    for command in commands.iter().chain(repeated) {
        answers.push(call("shell", json!({"command": command, "wait_s": 3600})));
    }
    if commands.is_empty() {
        answers.push(ScriptedAnswer::calls(&[plan(3)]));
        answers.push(call("finish", json!({"summary": "The page index.html shows the rain of four months as bars; test_page.py checks that every month has one."})));
    }
    answers
}
