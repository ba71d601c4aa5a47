//! Traces: the server exports OTLP (over HTTP, JSON) to an OpenTelemetry collector.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use e2e::{Options, Server, shell, wait_until};
use serde_json::Value;

/// A collector that keeps the exported spans.
struct Collector {
    port: u16,
    documents: Arc<Mutex<Vec<Value>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let documents = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&documents);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || {
                    let mut writer = stream.try_clone().unwrap();
                    let mut reader = BufReader::new(stream);
                    loop {
                        let mut head = Vec::new();
                        loop {
                            let mut line = String::new();
                            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                                return;
                            }
                            if line.trim().is_empty() {
                                break;
                            }
                            head.push(line.to_ascii_lowercase());
                        }
                        let length = head
                            .iter()
                            .find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
                        let mut body = vec![0; length.unwrap_or(0)];
                        reader.read_exact(&mut body).unwrap();
                        assert!(head[0].starts_with("post /v1/traces "), "{head:?}");
                        assert!(
                            head.iter().any(|line| line.trim() == "content-type: application/json"),
                            "{head:?}"
                        );
                        kept.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
                        writer.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}").unwrap();
                    }
                });
            }
        });
        Self { port, documents }
    }

    fn spans(&self) -> Vec<Value> {
        let documents = self.documents.lock().unwrap();
        let lists = documents.iter().map(|document| &document["resourceSpans"][0]["scopeSpans"][0]["spans"]);
        lists.flat_map(|spans| spans.as_array().cloned().unwrap_or_default()).collect()
    }
}

fn attribute<'a>(span: &'a Value, key: &str) -> &'a Value {
    let attributes = span["attributes"].as_array().unwrap();
    attributes.iter().find(|it| it["key"] == key).map_or(&Value::Null, |it| &it["value"])
}

#[test]
fn request_job_and_call_spans_are_exported() {
    let collector = Collector::start();
    let config = format!(
        "log = \"warn\"\n[telemetry]\notlp_endpoint = \"http://127.0.0.1:{}\"\nservice_name = \"tested\"\n",
        collector.port
    );
    let server = Server::start_with(Options { config, ..Options::default() });
    let job = server.schedule_steps(&[shell("true"), shell("exit 3")]);
    job.wait_for("failed");
    let find = |name: &str| {
        collector.spans().into_iter().find(|span| {
            span["name"] == name && (name != "job" || attribute(span, "job")["stringValue"] == job.id)
        })
    };
    wait_until("the job's span has come", || find("job").is_some());
    let of_job = find("job").unwrap();
    let calls: Vec<Value> = collector.spans().into_iter().filter(|span| span["name"] == "call").collect();
    assert_eq!(calls.len(), 2, "{calls:#?}");
    for (call, (id, outcome, code)) in
        calls.iter().zip([("step-1", "succeeded", Value::Null), ("step-2", "failed", 2.into())])
    {
        assert_eq!(attribute(call, "call")["stringValue"], id, "{call}");
        assert_eq!(attribute(call, "outcome")["stringValue"], outcome, "{call}");
        assert_eq!(call["status"]["code"], code, "{call}");
        assert_eq!(
            (&call["traceId"], &call["parentSpanId"]),
            (&of_job["traceId"], &of_job["spanId"]),
            "{call}"
        );
        assert_eq!(
            (call["traceId"].as_str().unwrap().len(), call["spanId"].as_str().unwrap().len()),
            (32, 16)
        );
        let time = |key: &str| call[key].as_str().unwrap().parse::<u128>().unwrap();
        assert!(time("startTimeUnixNano") <= time("endTimeUnixNano"));
    }
    wait_until("the request's span has come", || find("POST /schedule").is_some());
    let request = find("POST /schedule").unwrap();
    assert_eq!(
        (&attribute(&request, "http.response.status_code")["intValue"], &request["kind"]),
        (&"202".into(), &2.into())
    );
    let documents = collector.documents.lock().unwrap();
    let resource = documents[0]["resourceSpans"][0]["resource"]["attributes"].to_string();
    assert!(resource.contains("service.name") && resource.contains("tested"), "{resource}");
    drop(documents);
    assert!(!server.log().contains("caisson_trace"), "{}", server.log());
}

#[test]
fn unreachable_collector_is_logged_once_and_blocks_nothing() {
    let config = "[telemetry]\notlp_endpoint = \"http://127.0.0.1:9\"\n".to_owned();
    let server = Server::start_with(Options { config, ..Options::default() });
    server.schedule_steps(&[shell("true")]).wait_for("complete");
    wait_until("the log tells of it", || server.log().contains("cannot send traces"));
    server.schedule_steps(&[shell("true")]).wait_for("complete");
    assert_eq!(server.log().matches("cannot send traces").count(), 1);
}
