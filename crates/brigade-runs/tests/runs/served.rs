//! Pages of runs that go on, over HTTP.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use brigade_runs::{Access, Server};

use crate::{browser, made};

/// Serves a folder until the test's process ends.
fn served(folder: &Path, access: Access) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::new(folder, access).unwrap();
    std::thread::spawn(move || server.run(listener).unwrap());
    address
}

fn request(address: SocketAddr, path: &str, host: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
    stream
}

fn answer(address: SocketAddr, path: &str, host: &str) -> String {
    let mut text = String::new();
    request(address, path, host).read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_step_that_is_added_is_told_and_given() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("a b");
    made::run(&dir, 3);
    let address = served(folder.path(), Access::Loopback);
    let front = answer(address, "/", "localhost");
    assert!(front.starts_with("HTTP/1.1 200") && front.contains("\"name\":\"a b\""), "{front}");
    let page = answer(address, "/run/a%20b", "localhost");
    assert!(page.contains("\"watched\":\"/run/a%20b\"") && page.contains("no-store"), "{page}");
    let mut events = BufReader::new(request(address, "/run/a%20b/events", "localhost"));
    let mut line = String::new();
    while !line.starts_with("content-type: text/event-stream") {
        line.clear();
        assert!(events.read_line(&mut line).unwrap() > 0);
    }
    let path = dir.join("metrics.jsonl");
    let next = serde_json::to_string(&made::record(4)).unwrap() + "\n";
    fs::write(&path, fs::read_to_string(&path).unwrap() + &next).unwrap();
    while !line.starts_with("event: changed") {
        line.clear();
        assert!(events.read_line(&mut line).unwrap() > 0);
    }
    let parts = answer(address, "/run/a%20b/parts", "localhost");
    let parts: serde_json::Value = serde_json::from_str(parts.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(parts["data"]["steps"], serde_json::json!([1, 2, 3, 4]));
    assert!(parts["parts"]["summary"].as_str().unwrap().contains("4 of 3"));
}

#[test]
fn a_timeline_is_read_again_where_its_file_changed() {
    let folder = tempfile::tempdir().unwrap();
    made::run(folder.path(), 3);
    made::timeline(folder.path(), &crate::idle::pipeline());
    let address = served(folder.path(), Access::Loopback);
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    let has_timeline =
        || !answer(address, &format!("/run/{name}/parts"), "localhost").contains("\"timeline\":null");
    assert!(has_timeline());
    let entry = fs::read_dir(folder.path().join("profile")).unwrap().next().unwrap().unwrap();
    let (path, before) = (entry.path(), entry.metadata().unwrap());
    // As long and as old as before, it counts as the same.
    fs::write(&path, vec![b' '; before.len() as usize]).unwrap();
    let file = fs::File::options().append(true).open(&path).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    assert!(has_timeline());
    file.set_modified(before.modified().unwrap() + Duration::from_secs(1)).unwrap();
    assert!(!has_timeline());
}

#[test]
fn a_run_without_a_step_is_asked_for_again() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        made::run(&folder.path().join(name), 3);
    }
    fs::write(folder.path().join("a/metrics.jsonl"), "").unwrap();
    let address = served(folder.path(), Access::Loopback);
    let early = answer(address, "/run/a", "localhost");
    assert!(early.starts_with("HTTP/1.1 503") && early.contains("refresh: 2\r\n"), "{early}");
}

#[test]
fn others_are_not_let_in() {
    let folder = tempfile::tempdir().unwrap();
    made::run(folder.path(), 3);
    let address = served(folder.path(), Access::Loopback);
    assert!(answer(address, "/", "evil.example").starts_with("HTTP/1.1 403"));
    assert!(answer(address, "/", "127.0.0.1").contains("started on 4 ranks"), "the page of the only run");
    let address = served(folder.path(), Access::Token("secret".into()));
    for (path, code) in [("/", 403), ("/parts", 403), ("/?token=secret", 200), ("/run/x?token=secret", 404)] {
        assert!(answer(address, path, "any").starts_with(&format!("HTTP/1.1 {code}")), "{path}");
    }
}

/// What the scripts of a page leave in attributes of its document; none without a browser.
fn attributes(html: &str) -> Option<impl Fn(&str) -> String + use<>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("front.html");
    fs::write(&path, html).unwrap();
    let Some(document) = browser::document(&format!("file://{}", path.display())) else {
        eprintln!("passed over: no browser is installed");
        return None;
    };
    Some(move |name: &str| {
        let rest = document.split_once(&format!("data-{name}=\"")).unwrap_or_else(|| panic!("{document}")).1;
        rest.split_once('"').unwrap().0.to_owned()
    })
}

/// What a reader of the page of many runs does, and what is there after it.
const CLICKS: &str = r##"<script>{
const names = () => [...document.querySelectorAll("#runs td:nth-child(2)")].map((cell) => cell.textContent).join(" ");
const sort = (title) => [...document.querySelectorAll("#runs th")].find((head) => head.textContent.startsWith(title)).click();
const points = () => document.getElementById("chart-gradient-norm")?.dataset.points ?? "none";
const tick = (name) => document.querySelector(`[aria-label="draw ${name}"]`).click();
const did = [];
sort("of"), did.push(names());
sort("of"), did.push(names());
sort("loss"), did.push(names());
did.push(points());
tick("b"), did.push(points());
sort("run"), tick("a"), tick("c"), did.push(points());
tick("b"), did.push(points());
document.documentElement.dataset.did = did.join(" | ");
}</script>"##;

#[test]
fn the_table_of_runs_sorts_them_and_draws_those_that_are_ticked_over_each_other() {
    let folder = tempfile::tempdir().unwrap();
    for (name, steps) in [("a", 9), ("b", 25), ("c", 16)] {
        made::run(&folder.path().join(name), steps);
    }
    let address = served(folder.path(), Access::Loopback);
    let front = answer(address, "/", "localhost");
    let html = front.split_once("\r\n\r\n").unwrap().1.replace("</body>", &format!("{CLICKS}</body>"));
    let Some(value) = attributes(&html) else { return };
    assert_eq!(value("errors"), "0");
    // The loss falls with every step, and is drawn at each of 9, 25 and 16 steps.
    assert_eq!(value("did"), "a c b | b c a | b c a | 50 | 25 | none | 25");
}

/// A server of which the first answer comes last. It tells of two changes while it answers, and of none after a connection was lost.
const SERVER: &str = r##"<script>
let source, asked = 0, busy = 0, most = 0;
class EventSource {
  constructor() { source = this; this.told = {}; }
  addEventListener(name, then) { this.told[name] = then; }
}
window.fetch = async () => {
  const answer = ++asked;
  most = Math.max(most, ++busy);
  await new Promise((then) => setTimeout(then, answer === 1 ? 400 : 10));
  busy--;
  return { ok: true, json: async () => ({ ...read(), name: `answer ${answer}` }) };
};
const tell = (after, name) => setTimeout(() => source.told[name]({}), after);
addEventListener("load", () => {
  [[0, "open"], [50, "changed"], [100, "changed"], [1000, "open"]].forEach(([after, name]) => tell(after, name));
  setTimeout(() => { document.documentElement.dataset.did = `${read().name} of ${asked}, ${most} at once`; }, 2000);
});
</script>"##;

#[test]
fn an_open_page_asks_for_what_changed_while_it_was_not_connected_and_no_answer_overtakes_another() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        made::run(&folder.path().join(name), 9);
    }
    let front = answer(served(folder.path(), Access::Loopback), "/", "localhost");
    let html = front.split_once("\r\n\r\n").unwrap().1.replacen("<body>", &format!("<body>{SERVER}"), 1);
    assert!(html.contains(SERVER), "{html}");
    let Some(value) = attributes(&html) else { return };
    // When it connects, for the changes during the first answer, and when it connects again.
    assert_eq!((value("errors"), value("did")), ("0".into(), "answer 3 of 3, 1 at once".into()));
}

/// A server that tells of a change when it is asked to `change`, with one more step each time.
const ONE_MORE: &str = r##"<script>
let source;
class EventSource {
  constructor() { source = this; this.told = {}; }
  addEventListener(name, then) { this.told[name] = then; }
}
const longer = (values, next) => [...values, next(values.at(-1))];
const stepped = (run) => ({
  ...run,
  steps: longer(run.steps, (step) => step + 1),
  times: longer(run.times, (time) => time + 1),
  charts: run.charts.map((chart) => ({
    ...chart, series: chart.series.map((one) => ({ ...one, values: longer(one.values, () => 1) })),
  })),
});
window.fetch = async () => {
  const data = read();
  const next = data.runs ? { ...data, runs: data.runs.map(stepped) } : { data: stepped(data), parts: {} };
  return { ok: true, json: async () => next };
};
const drawn = () => new Promise((then) => setTimeout(then, 50));
const change = async () => { await source.told.changed({}); await drawn(); };
// Those that uPlot holds, and those in the page.
const plots = () => `${uPlot.sync("brigade").plots.length} of ${document.querySelectorAll(".uplot").length}`;
const did = [];
addEventListener("load", async () => {
  await act();
  document.documentElement.dataset.did = did.join(" | ");
});
</script>"##;

/// What the scripts of a page of the runs in a folder leave, while `act` asks for changes; none without a browser.
fn acted(folder: &Path, act: &str) -> Option<impl Fn(&str) -> String + use<>> {
    let page = answer(served(folder, Access::Loopback), "/", "localhost");
    let scripts = format!("<body>{ONE_MORE}<script>async function act() {{{act}}}</script>");
    let html = page.split_once("\r\n\r\n").unwrap().1.replacen("<body>", &scripts, 1);
    assert!(html.contains(&scripts), "{html}");
    attributes(&html)
}

#[test]
fn a_page_of_runs_that_go_on_holds_only_the_charts_that_it_shows() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        made::run(&folder.path().join(name), 9);
    }
    let act = r##"
        for (let time = 0; time < 5; time++) await change();
        did.push(plots(), document.getElementById("chart-gradient-norm").dataset.points);
        const tick = (name) => document.querySelector(`[aria-label="draw ${name}"]`).click();
        tick("a"), did.push(plots());
        tick("b"), did.push(plots());
        tick("b"), did.push(plots());
    "##;
    let Some(value) = acted(folder.path(), act) else { return };
    assert_eq!(
        (value("errors"), value("did")),
        ("0".into(), "3 of 3 | 28 | 3 of 3 | 0 of 0 | 3 of 3".into())
    );
}

#[test]
fn what_a_reader_looks_at_stays_there_while_steps_are_added() {
    let folder = tempfile::tempdir().unwrap();
    made::run(folder.path(), 9);
    let act = r##"
        const loss = () => document.getElementById("chart-loss");
        const plot = () => loss().drawn.plot;
        const shown = () => `${plot().scales.x.min} to ${plot().scales.x.max} of ${plot().data[0].length}`;
        const told = () => [...document.querySelectorAll("#chart-loss .u-legend, #heat .hint")].map((one) => one.textContent).join();
        await change(), did.push(shown());
        plot().setScale("x", { min: 3, max: 6 });
        plot().setCursor({ left: 100, top: 100 });
        const cells = document.querySelector("#heat canvas").getBoundingClientRect();
        document.querySelector("#heat canvas").dispatchEvent(new MouseEvent("mousemove", { clientX: cells.left + 150, clientY: cells.top + 5 }));
        await drawn();
        const before = told();
        did.push(/step\d.*, step \d+: /.test(before));
        await change(), did.push(shown(), told() === before);
        document.getElementById("theme").click();
        await drawn(), did.push(shown());
        plot().setScale("x", { min: 1, max: 11 });
        await drawn(), await change(), did.push(shown());
        plot().setScale("x", { min: 3, max: 6 });
        await drawn();
        [...document.querySelectorAll("#axis button")].find((button) => button.textContent === "time").click();
        await drawn(), did.push(plot().scales.x.max > 6);
        did.push(plots() === `${read().charts.length} of ${read().charts.length}`);
    "##;
    let Some(value) = acted(folder.path(), act) else { return };
    let expected = "1 to 10 of 10 | true | 3 to 6 of 11 | true | 3 to 6 of 11 | 1 to 12 of 12 | true | true";
    assert_eq!((value("errors"), value("did")), ("0".into(), expected.into()));
}
