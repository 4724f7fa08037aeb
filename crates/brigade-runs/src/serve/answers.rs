//! What is answered to each address.

use std::convert::Infallible;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{StatusCode, header};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::task::spawn_blocking;

use super::views::View;
use super::watched::Watched;
use crate::error::Result;
use crate::page::{runs_data, runs_page};

/// How often files are looked at while somebody watches.
const EVERY: Duration = Duration::from_secs(1);

/// The page of the only run, or the table of all.
pub async fn front(State(watched): State<Arc<Watched>>) -> Response {
    respond(watched, |watched| match watched.only() {
        Some(name) => of_run(watched, &name, View::Page),
        None => html(runs_page(&watched.name(), &runs_data(&watched.name(), watched.all()))),
    })
    .await
}

pub async fn runs_parts(State(watched): State<Arc<Watched>>) -> Response {
    respond(watched, |watched| {
        json(serde_json::to_string(&runs_data(&watched.name(), watched.all())).map_err(Into::into))
    })
    .await
}

pub async fn runs_events(State(watched): State<Arc<Watched>>) -> impl IntoResponse {
    changes(watched, |watched| watched.look().ok()).await
}

pub async fn run(State(watched): State<Arc<Watched>>, Path(name): Path<String>) -> Response {
    respond(watched, move |watched| of_run(watched, &name, View::Page)).await
}

pub async fn run_parts(State(watched): State<Arc<Watched>>, Path(name): Path<String>) -> Response {
    respond(watched, move |watched| of_run(watched, &name, View::Parts)).await
}

pub async fn run_events(State(watched): State<Arc<Watched>>, Path(name): Path<String>) -> impl IntoResponse {
    changes(watched, move |watched| watched.look().ok()?.remove(&name)).await
}

/// Makes an answer on a thread of its own, so that others are answered meanwhile.
async fn respond(
    watched: Arc<Watched>,
    make: impl FnOnce(&Watched) -> Response + Send + 'static,
) -> Response {
    let made = spawn_blocking(move || make(&watched)).await;
    made.unwrap_or_else(|error| failed(&error.to_string()))
}

fn of_run(watched: &Watched, name: &str, view: View) -> Response {
    match watched.run(name) {
        None => (StatusCode::NOT_FOUND, "there is no such run\n").into_response(),
        // Its first step may be on the way: the browser asks again.
        Some(Err(error)) => {
            let again = [(header::REFRESH, "2")];
            (StatusCode::SERVICE_UNAVAILABLE, again, format!("{error}\n")).into_response()
        }
        Some(Ok((run, views))) => {
            let path: String = name.bytes().map(escaped).collect();
            let mut views = views.lock().unwrap_or_else(PoisonError::into_inner);
            let made = views.get(view, &run, &format!("/run/{path}"));
            match view {
                View::Page => html(made),
                View::Parts => json(made),
            }
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

fn html(page: Result<impl Into<Bytes>>) -> Response {
    page.map_or_else(|error| failed(&error.to_string()), |page| Html(page.into()).into_response())
}

fn json(text: Result<impl Into<Bytes>>) -> Response {
    let typed = |text: Bytes| ([(header::CONTENT_TYPE, "application/json")], text).into_response();
    text.map_or_else(|error| failed(&error.to_string()), |text| typed(text.into()))
}

fn failed(error: &str) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_owned()).into_response()
}

/// An event each time that `look` finds something else than before.
async fn changes<T: PartialEq + Send + 'static>(
    watched: Arc<Watched>,
    look: impl Fn(&Watched) -> T + Send + Sync + 'static,
) -> Sse<impl Stream<Item = std::result::Result<Event, Infallible>>> {
    let look = Arc::new(look);
    let look = move || {
        let (watched, look) = (Arc::clone(&watched), Arc::clone(&look));
        spawn_blocking(move || look(&watched))
    };
    let before = look().await.ok();
    let events = unfold((look, before), |(look, before)| async move {
        loop {
            tokio::time::sleep(EVERY).await;
            let now = look().await.ok();
            if now != before {
                return Some((Ok(Event::default().event("changed").data("look again")), (look, now)));
            }
        }
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}
