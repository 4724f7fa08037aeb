//! Requests to the hub: each with deadlines, repeated where the reason of a failure may pass.

use std::io::Read;
use std::thread;

use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body};

use super::{Hub, ModelName};
use crate::error::HfError;

/// How long a list of files may be.
const MAX_JSON: u64 = 64 << 20;

/// Addresses of this machine, which no proxy reaches.
const LOOPBACK: [&str; 3] = ["http://127.0.0.1", "http://localhost", "http://[::1]"];

/// The hub, for one model.
pub(super) struct Client<'h> {
    hub: &'h Hub,
    model: String,
    agent: Agent,
}

/// Why a request failed.
pub(super) enum Failure {
    /// It may pass.
    Passing(String),
    /// It will not.
    Final(String),
}

impl<'h> Client<'h> {
    pub fn new(hub: &'h Hub, name: &ModelName) -> Self {
        let mut configuration = Agent::config_builder()
            .http_status_as_error(false)
            // The token is for the hub, not for the servers of files that it names.
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .user_agent(concat!("brigade/", env!("CARGO_PKG_VERSION")))
            .timeout_resolve(Some(hub.timeout))
            .timeout_connect(Some(hub.timeout))
            .timeout_recv_response(Some(hub.timeout))
            .timeout_per_read(Some(hub.timeout));
        if LOOPBACK.iter().any(|host| hub.endpoint.starts_with(host)) {
            configuration = configuration.proxy(None);
        }
        Self { hub, model: name.to_string(), agent: configuration.build().into() }
    }

    /// Gets a JSON text.
    pub fn json(&self, path: &str) -> Result<String, HfError> {
        self.repeated(|_| {
            let mut response = self.get(path, 0)?;
            let body = response.body_mut().with_config().limit(MAX_JSON);
            body.read_to_string().map_err(|error| Failure::Passing(error.to_string()))
        })
    }

    /// Calls `attempt` until it succeeds, fails for good, or has failed too often without anything new. It says whether there is: an
    /// attempt that got further gives the next ones their number again.
    pub fn repeated<T>(
        &self,
        mut attempt: impl FnMut(&mut bool) -> Result<T, Failure>,
    ) -> Result<T, HfError> {
        let mut failures = 0;
        loop {
            let mut further = false;
            match attempt(&mut further) {
                Ok(value) => return Ok(value),
                Err(Failure::Final(problem)) => return Err(self.error(problem)),
                Err(Failure::Passing(problem)) => {
                    failures = if further { 1 } else { failures + 1 };
                    if failures > self.hub.retries {
                        let often = if failures > 1 { format!(" ({failures} times)") } else { String::new() };
                        return Err(self.error(format!("{problem}{often}")));
                    }
                    thread::sleep(self.hub.retry_pause * 2u32.saturating_pow(failures - 1));
                }
            }
        }
    }

    /// Sends a request for a path of the hub, for its bytes from `start` on.
    pub fn get(&self, path: &str, start: u64) -> Result<Response<Body>, Failure> {
        let endpoint = &self.hub.endpoint;
        let mut request = self.agent.get(format!("{endpoint}/{path}"));
        if start > 0 {
            request = request.header("Range", format!("bytes={start}-"));
        }
        if let Some(token) = &self.hub.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        let response =
            request.call().map_err(|error| Failure::Passing(format!("cannot reach {endpoint}: {error}")))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let token = if self.hub.token.is_some() {
            "this token does not give access"
        } else {
            "HF_TOKEN may give \
            access"
        };
        let reason = match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                format!("{endpoint} restricts access, and {token} ({status})")
            }
            StatusCode::NOT_FOUND => {
                format!("{endpoint} has no such model or revision, or hides it: {token} ({status})")
            }
            _ => format!("{endpoint} answered {status} for {path}"),
        };
        let passes = status.is_server_error()
            || matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        Err(if passes { Failure::Passing(reason) } else { Failure::Final(reason) })
    }

    pub fn error(&self, problem: impl Into<String>) -> HfError {
        HfError::Hub { model: self.model.clone(), problem: problem.into() }
    }
}

/// Reads on, as far as there is something.
pub(super) fn read(reader: &mut impl Read, buffer: &mut [u8]) -> Result<usize, Failure> {
    reader.read(buffer).map_err(|error| Failure::Passing(error.to_string()))
}
