//! `meshkeep mcp`: an assistant that speaks the Model Context Protocol over standard input and
//! output.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::samples::in_state_form;
use crate::harness::PATIENCE;
use crate::harness::etcd::etcd_binaries;

/// An assistant that has started the server.
struct Assistant {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    last_id: u64,
}

impl Assistant {
    /// Starts the server and completes the handshake.
    async fn start(server: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshkeep"));
        command.args(["mcp", "--server", server]).env_remove("MESHKEEP_TOKEN_FILE").kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut assistant = Self { child, input, output: BufReader::new(output).lines(), last_id: 0 };
        let client = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
        let answer = assistant.request("initialize", client).await;
        assert_eq!(answer["result"]["serverInfo"]["name"], "meshkeep", "{answer}");
        assert_eq!(answer["result"]["protocolVersion"], "2025-06-18", "{answer}");
        assert!(answer["result"]["capabilities"]["tools"].is_object(), "{answer}");
        assistant.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).await;
        assistant
    }

    async fn send(&mut self, message: &Value) {
        self.input.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    /// Sends a request and returns the next message, which must be its answer.
    async fn request(&mut self, method: &str, parameters: Value) -> Value {
        self.last_id += 1;
        let request = json!({"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": parameters});
        self.send(&request).await;
        let line = timeout(PATIENCE, self.output.next_line()).await.expect("an answer in time").unwrap().expect("an answer");
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(self.last_id)), "{answer}");
        answer
    }

    /// Calls a tool. Returns whether it failed, and the texts of its answer.
    async fn call(&mut self, tool: &str, arguments: Value) -> (bool, Vec<String>) {
        let answer = self.request("tools/call", json!({"name": tool, "arguments": arguments})).await;
        let result = &answer["result"];
        let texts = result["content"].as_array().unwrap_or_else(|| panic!("{answer}"));
        let texts = texts.iter().map(|block| block["text"].as_str().unwrap().to_owned()).collect();
        (result["isError"] == true, texts)
    }

    /// Calls a tool that must succeed. Returns the JSON of its answer.
    async fn json(&mut self, tool: &str, arguments: Value) -> Value {
        let (is_error, texts) = self.call(tool, arguments).await;
        assert_eq!((is_error, texts.len()), (false, 1), "{texts:?}");
        serde_json::from_str(&texts[0]).unwrap()
    }

    /// Calls a tool that must fail. Returns the text of the error.
    async fn error(&mut self, tool: &str, arguments: Value) -> String {
        let (is_error, mut texts) = self.call(tool, arguments).await;
        assert_eq!((is_error, texts.len()), (true, 1), "{texts:?}");
        texts.remove(0)
    }

    /// Closes standard input. Returns the exit code, the rest of standard output, and standard
    /// error.
    async fn end(self) -> (Option<i32>, String, String) {
        let Self { mut child, input, output, .. } = self;
        drop(input);
        let (mut rest, mut log) = (String::new(), String::new());
        output.into_inner().read_to_string(&mut rest).await.unwrap();
        child.stderr.take().unwrap().read_to_string(&mut log).await.unwrap();
        let status = timeout(PATIENCE, child.wait()).await.expect("an end in time").unwrap();
        (status.code(), rest, log)
    }
}

#[tokio::test]
async fn each_tool_answers_with_the_json_of_the_api() {
    let (_etcds, home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let mut assistant = Assistant::start(running.url()).await;
    let listed = assistant.request("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["lookup", "explain", "history", "problems", "diff", "status"]);
    for tool in tools {
        assert_eq!((&tool["annotations"]["readOnlyHint"], &tool["inputSchema"]["type"]), (&json!(true), &json!("object")), "{tool}");
        assert_eq!(tool["inputSchema"]["additionalProperties"], false, "{tool}");
    }

    let found = assistant.json("lookup", json!({"ips": ["10.1.2.40"]})).await;
    assert_eq!((&found["match"]["podName"], &found["meta"]["origin"]), (&json!("db-0"), &json!("live")), "{found}");
    let found = assistant.json("lookup", json!({"ips": ["10.1.2.40"], "at": "0s"})).await;
    assert_eq!(found["match"]["podName"], "db-0", "{found}");
    let both = assistant.json("lookup", json!({"ips": ["10.1.2.40", "192.0.2.1"]})).await;
    assert_eq!((&both["items"][0]["match"]["cluster"], &both["items"][1]["match"]), (&json!("paris"), &Value::Null), "{both}");
    let explained = assistant.json("explain", json!({"ip": "10.1.2.40"})).await;
    assert_eq!(
        (&explained["node"]["name"], &explained["entries"][0]["verdict"]),
        (&json!("paris-worker-2"), &json!("wins")),
        "{explained}"
    );
    let earlier = assistant.json("explain", json!({"ip": "10.1.2.40", "at": "0s"})).await;
    assert!(earlier["node"]["name"] == "paris-worker-2" && earlier["meta"]["at"].is_string(), "{earlier}");
    let versions = assistant.json("history", json!({"subject": "pod/shop/db-0", "limit": 1})).await;
    assert_eq!(versions["items"][0]["object"]["podName"], "db-0", "{versions}");
    let problems = assistant.json("problems", json!({"clusters": ["paris"], "severity": "critical"})).await;
    assert_eq!(problems["items"], json!([]), "{problems}");
    let status = assistant.json("status", json!({})).await;
    assert_eq!(status["counts"], running.get("/v1/status").await["counts"], "{status}");

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/agent/1.20-bpf-ipcache.json");
    let from_file = assistant.json("diff", json!({"file": path})).await;
    let objects: Vec<&Value> = from_file["differences"].as_array().unwrap().iter().map(|difference| &difference["object"]).collect();
    assert_eq!(objects.len(), 3, "{from_file}");
    let from_text = assistant.json("diff", json!({"table": fs::read_to_string(&path).unwrap()})).await;
    assert_eq!((&from_text["table"], from_text["differences"].as_array().unwrap().len()), (&json!("cilium-dbg bpf ipcache list"), 3));

    let (code, rest, log) = assistant.end().await;
    assert_eq!((code, rest.as_str(), log.as_str()), (Some(0), "", ""));
    drop(home);
}

#[tokio::test]
async fn errors_are_answers_with_advice() {
    let (_etcds, _home, running) = in_state_form(&etcd_binaries()[0], &[]).await;
    let mut assistant = Assistant::start(running.url()).await;
    let fifo = tempfile::tempdir().unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, fifo.path().join("fifo"), rustix::fs::Mode::RUSR).unwrap();
    let not_regular = format!("cannot read {}/fifo: not a regular file", fifo.path().display());
    for (tool, arguments, expected) in [
        ("lookup", json!({"ips": ["nonsense"]}), "ip: \"nonsense\" is not an IP address"),
        ("lookup", json!({"ip": "10.1.2.40"}), "the arguments of lookup cannot be used: unknown field `ip`, expected `ips` or `at`"),
        ("explain", json!({"ip": "10.1.2.40", "at": "nonsense"}), "at: \"nonsense\" is not a time"),
        ("explain", json!({}), "the arguments of explain cannot be used: missing field `ip`"),
        ("problems", json!({"severity": "nonsense"}), "severity: use critical, warning or info"),
        ("history", json!({"subject": "10.1.2.40", "limit": 0}), "limit: 0 is not between 1 and 10000"),
        ("diff", json!({}), "give exactly one of file and table"),
        // standard input carries the protocol, so this is the name of a file
        ("diff", json!({"file": "-"}), "cannot read -: No such file or directory"),
        ("diff", json!({"file": "/dev/zero"}), "cannot read /dev/zero: not a regular file"),
        ("diff", json!({"file": fifo.path().join("fifo")}), not_regular.as_str()),
        ("diff", json!({"table": "IP  IDENTITY"}), "table is not a table of an agent"),
    ] {
        let error = assistant.error(tool, arguments.clone()).await;
        assert!(error.starts_with(expected), "{tool} {arguments}: {error}");
    }
    let unknown = assistant.request("tools/call", json!({"name": "delete", "arguments": {}})).await;
    assert_eq!(unknown["error"]["message"], "there is no tool \"delete\": tools/list lists all", "{unknown}");
    // the server still answers
    assert_eq!(assistant.json("explain", json!({"ip": "10.1.2.40"})).await["ip"], "10.1.2.40");

    let mut without = Assistant::start("http://127.0.0.1:1").await;
    let error = without.error("lookup", json!({"ips": ["10.1.2.40"]})).await;
    let expected = "no meshkeep at 127.0.0.1:1 (connection refused): ask the user to check the options of meshkeep and of this MCP server, and that meshkeep runs";
    assert_eq!(error, expected);
    assert_eq!(without.end().await.0, Some(0));
}
