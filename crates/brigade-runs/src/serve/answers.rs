//! What is answered to each address.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use futures_util::Stream;
use futures_util::stream::unfold;

use super::watched::Watched;
use crate::error::Result;
use crate::page::{StepTimeline, live_page, live_parts, runs_data, runs_page};
use crate::run::Run;

/// How often files are looked at while somebody watches.
const EVERY: Duration = Duration::from_secs(1);

/// The page of the only run, or the table of all.
pub async fn front(State(watched): State<Arc<Watched>>) -> Response {
    match watched.only() {
        Some(name) => run(State(watched), Path(name)).await,
        None => html(runs_page(&watched.name(), &runs_data(&watched.name(), watched.all()))),
    }
}

pub async fn runs_parts(State(watched): State<Arc<Watched>>) -> Response {
    json(serde_json::to_string(&runs_data(&watched.name(), watched.all())).map_err(Into::into))
}

pub async fn runs_events(State(watched): State<Arc<Watched>>) -> impl IntoResponse {
    changes(watched, |watched| watched.look().ok())
}

pub async fn run(State(watched): State<Arc<Watched>>, Path(name): Path<String>) -> Response {
    answer(&watched, &name, |run, timeline, address| html(live_page(run, timeline, address)))
}

pub async fn run_parts(State(watched): State<Arc<Watched>>, Path(name): Path<String>) -> Response {
    answer(&watched, &name, |run, timeline, address| json(live_parts(run, timeline, address)))
}

pub async fn run_events(State(watched): State<Arc<Watched>>, Path(name): Path<String>) -> impl IntoResponse {
    changes(watched, move |watched| watched.look().ok()?.remove(&name))
}

fn answer(
    watched: &Watched,
    name: &str,
    show: impl Fn(&Run, Option<StepTimeline>, &str) -> Response,
) -> Response {
    match watched.run(name) {
        None => (StatusCode::NOT_FOUND, "there is no such run\n").into_response(),
        // Its first step may be on the way: the browser asks again.
        Some(Err(error)) => {
            let again = [(header::REFRESH, "2")];
            (StatusCode::SERVICE_UNAVAILABLE, again, format!("{error}\n")).into_response()
        }
        Some(Ok((run, timeline))) => {
            let path: String = name.bytes().map(escaped).collect();
            show(&run, timeline, &format!("/run/{path}"))
        }
    }
}

/// A byte of a name as it stands in an address.
fn escaped(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    }
}

fn html(page: Result<String>) -> Response {
    page.map_or_else(|error| failed(&error.to_string()), |page| Html(page).into_response())
}

fn json(text: Result<String>) -> Response {
    let typed = |text| ([(header::CONTENT_TYPE, "application/json")], text).into_response();
    text.map_or_else(|error| failed(&error.to_string()), typed)
}

fn failed(error: &str) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_owned()).into_response()
}

/// An event each time that `look` finds something else than before.
fn changes<T: PartialEq + Send + 'static>(
    watched: Arc<Watched>,
    look: impl Fn(&Watched) -> T + Send + 'static,
) -> Sse<impl Stream<Item = std::result::Result<Event, Infallible>>> {
    let before = look(&watched);
    let events = unfold((watched, look, before), |(watched, look, before)| async move {
        loop {
            tokio::time::sleep(EVERY).await;
            let now = look(&watched);
            if now != before {
                return Some((
                    Ok(Event::default().event("changed").data("look again")),
                    (watched, look, now),
                ));
            }
        }
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}
