//! Lines on standard error: as text for people, or each as a JSON object for a collector of logs.
//!
//! ```text
//! {"time":"2026-11-23T19:30:00.125Z","level":"info","rank":0,"host":"node-7","message":"step","fields":{"step":10,"loss":2.5,…}}
//! ```

use std::io::{self, Write};
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

/// How a process writes lines to standard error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// As text.
    #[default]
    Text,
    /// One JSON object a line: `time`, `level`, `rank` (null in a launcher), `host`, `message`, and `fields` where there are any.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err("it must be text or json".into()),
        }
    }
}

static FORMAT: OnceLock<LogFormat> = OnceLock::new();
static RANK: OnceLock<usize> = OnceLock::new();

/// Chooses the format of this process, once: later calls change nothing.
pub fn set_log_format(format: LogFormat) {
    FORMAT.get_or_init(|| format);
}

/// The format of this process.
pub fn log_format() -> LogFormat {
    FORMAT.get().copied().unwrap_or_default()
}

/// Says which rank this process is, once.
pub fn set_log_rank(rank: usize) {
    RANK.get_or_init(|| rank);
}

/// Writes a message of one or several lines to standard error. If that fails (a full disk, a closed pipe), the program carries on.
pub fn print_log(text: &str) {
    let line = match log_format() {
        LogFormat::Text => text.to_owned(),
        LogFormat::Json => json_line(RANK.get().copied(), text),
    };
    drop(io::stderr().write_all(format!("{line}\n").as_bytes()));
}

/// Standard error in this process's format.
pub fn log_output() -> Box<dyn Write + Send> {
    match log_format() {
        LogFormat::Text => Box::new(io::stderr()),
        LogFormat::Json => Box::new(JsonLines { line: Vec::new() }),
    }
}

/// A line as a JSON object. One that is such an object already stays as it is; any other object becomes the `fields` of a step.
pub fn json_line(rank: Option<usize>, text: &str) -> String {
    let object =
        text.starts_with('{').then(|| serde_json::from_str::<Map<String, Value>>(text).ok()).flatten();
    if object.as_ref().is_some_and(|object| object.contains_key("message") && object.contains_key("level")) {
        return text.to_owned();
    }
    let (level, message) = if object.is_some() { ("info", "step") } else { level(text) };
    let time = humantime::format_rfc3339_millis(SystemTime::now().max(UNIX_EPOCH)).to_string();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut line = json!({ "time": time, "level": level, "rank": rank, "host": host, "message": message });
    if let Some(fields) = object {
        line["fields"] = Value::Object(fields);
    }
    line.to_string()
}

/// What a line would be as text, if it is such an object.
pub fn message_of(line: &str) -> Option<String> {
    let object: Value = line.starts_with('{').then(|| serde_json::from_str(line).ok()).flatten()?;
    let begin = match object["level"].as_str()? {
        "error" => "brigade: ",
        "warn" => "warning: ",
        _ => "",
    };
    let step = object["fields"]["step"].as_u64().map_or_else(String::new, |step| format!(" {step}"));
    Some(format!("{begin}{}{step}", object["message"].as_str()?))
}

/// What a text begins with says how serious it is.
fn level(text: &str) -> (&'static str, &str) {
    let text = text.trim();
    let begins = [
        ("brigade: ", "error"),
        ("warning: ", "warn"),
        ("note: ", "info"),
        ("ERROR ", "error"),
        ("WARN ", "warn"),
        ("INFO ", "info"),
        ("DEBUG ", "debug"),
        ("TRACE ", "trace"),
    ];
    let found =
        begins.iter().find_map(|(begin, level)| Some((*level, text.strip_prefix(begin)?.trim_start())));
    found.unwrap_or(("info", text))
}

/// Collects lines and writes each as an object.
struct JsonLines {
    line: Vec<u8>,
}

impl Write for JsonLines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                let text = String::from_utf8_lossy(&line);
                if !text.trim().is_empty() {
                    print_log(text.trim_end());
                }
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_becomes_one_object_with_its_level_and_stays_one() {
        for (text, level, message) in [
            ("brigade: rank 0: \"no\"", "error", "rank 0: \"no\""),
            ("warning: slow\nand more", "warn", "slow\nand more"),
            (" WARN a link is slow", "warn", "a link is slow"),
            ("12 files", "info", "12 files"),
            ("{not json", "info", "{not json"),
        ] {
            let line = json_line(Some(3), text);
            let object: Value = serde_json::from_str(&line).unwrap();
            assert_eq!(
                (&object["level"], &object["message"], &object["rank"]),
                (&json!(level), &json!(message), &json!(3))
            );
            assert!(object["time"].as_str().unwrap().ends_with('Z') && !line.contains('\n'));
            assert_eq!(json_line(None, &line), line);
            let text = message_of(&line).unwrap();
            assert!(text.ends_with(message) && text.starts_with("brigade: ") == (level == "error"), "{text}");
        }
        let object: Value = serde_json::from_str(&json_line(None, "{\"step\":7}")).unwrap();
        assert_eq!(
            (&object["message"], &object["fields"]["step"], &object["rank"]),
            (&json!("step"), &json!(7), &Value::Null)
        );
        assert_eq!(message_of(&object.to_string()).unwrap(), "step 7");
        assert_eq!(message_of("{\"step\":7}"), None);
    }
}
