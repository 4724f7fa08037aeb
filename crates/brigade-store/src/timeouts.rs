//! How long a request may take, the more it sends the longer, and the pauses before another one.
//!
//! A checkpoint is sent in parts, several at once, by each rank of a host. On a slow line all of them take long, and if all were given up after the same time, none would
//! ever arrive.

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
    ReqwestConnector,
};
use tokio::time::timeout;

/// The first pause after a connection that was cut.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The headers of requests that let a store copy an object.
const COPY_HEADERS: [&str; 2] = ["x-amz-copy-source", "x-goog-copy-source"];

/// How many bytes a second a connection sends at least, if it is not silent.
const SLOWEST: u32 = 64 << 10;

/// Connects as `object_store` itself does, but gives requests with content their time.
#[derive(Debug)]
pub(crate) struct RequestTimeouts {
    /// For the answer, once all is sent.
    pub answer: Duration,
    /// For any request, and for one that lets the store copy an object.
    pub most: Duration,
}

impl RequestTimeouts {
    /// The time for a request with this many bytes.
    fn with(&self, bytes: usize) -> Duration {
        let sending = Duration::from_secs_f64(bytes as f64 / f64::from(SLOWEST));
        (self.answer + sending).min(self.most.max(self.answer))
    }
}

type Answered = Result<HttpResponse, HttpError>;

/// Two clients, as the time of one is the same for all of its requests.
struct Service {
    timeouts: RequestTimeouts,
    without_content: HttpClient,
    with_content: HttpClient,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.timeouts.fmt(f)
    }
}

impl HttpConnector for RequestTimeouts {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let Self { answer, most } = *self;
        let connector = ReqwestConnector::default();
        Ok(HttpClient::new(Service {
            timeouts: Self { answer, most },
            without_content: connector.connect(options)?,
            with_content: connector.connect(&options.clone().with_timeout(most.max(answer)))?,
        }))
    }
}

impl HttpService for Service {
    // What the trait's macro makes of `async fn call(&self, request: HttpRequest)`.
    fn call<'a, 'b>(&'a self, request: HttpRequest) -> Pin<Box<dyn Future<Output = Answered> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        Box::pin(async move {
            let bytes = request.body().content_length();
            let copies = COPY_HEADERS.iter().any(|header| request.headers().contains_key(*header));
            if copies {
                // The store answers when it has copied all, which takes the longer the larger the object is.
                return self.with_content.execute(request).await;
            }
            if bytes == 0 {
                return self.without_content.execute(request).await;
            }
            let answered = timeout(self.timeouts.with(bytes), self.with_content.execute(request)).await;
            answered.unwrap_or_else(|late| Err(HttpError::new(HttpErrorKind::Timeout, late)))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use brigade_testing::{Fault, ObjectServer};
    use object_store::http::HttpBuilder;
    use object_store::path::Path;
    use object_store::{ObjectStoreExt, RetryConfig};

    use super::*;
    use crate::Client;

    #[test]
    fn the_more_is_sent_the_longer_it_may_take() {
        let timeouts = RequestTimeouts { answer: Duration::from_secs(30), most: Duration::from_secs(150) };
        assert_eq!(timeouts.with(64 << 10), Duration::from_secs(31));
        assert_eq!(timeouts.with(8 << 20), Duration::from_secs(150));
        let shorter = RequestTimeouts { answer: Duration::from_secs(3), most: Duration::from_secs(1) };
        assert_eq!(shorter.with(8 << 20), Duration::from_secs(3));
    }

    /// Sends 320 KiB, for which there are 10 s, to a server that takes pieces of 16 KiB; how long that took.
    fn sent(server: &ObjectServer) -> Duration {
        let (answer, deadline) = (Duration::from_secs(5), Duration::from_secs(60));
        let url = server.url("");
        let builder = HttpBuilder::new()
            .with_url(&url)
            .with_client_options(ClientOptions::new().with_timeout(answer).with_allow_http(true))
            .with_retry(RetryConfig { retry_timeout: deadline, ..RetryConfig::default() })
            .with_http_connector(RequestTimeouts { answer, most: deadline / 2 });
        let client = Client::new(std::sync::Arc::new(builder.build().unwrap()), &url, deadline).unwrap();
        let path = Path::from("data/a.bin");
        let content = vec![7; 320 << 10];
        let begin = Instant::now();
        client.wait("write", &path, client.store().put(&path, content.clone().into())).unwrap();
        let took = begin.elapsed();
        assert!(server.get("data/a.bin") == Some(content));
        took
    }

    #[test]
    fn an_upload_on_a_slow_line_arrives_at_once() {
        let server = ObjectServer::start().unwrap();
        server.plan(|request| if request.method == "PUT" { Fault::SlowUpload(350) } else { Fault::None });
        // Longer than an answer may take.
        assert!(sent(&server) > Duration::from_secs(6));
        assert_eq!(server.requests(), 1, "{:?}", server.log());
    }

    #[test]
    fn an_upload_that_gets_nowhere_is_made_again() {
        let server = ObjectServer::start().unwrap();
        server.plan(|request| if request.number == 0 { Fault::SlowUpload(60_000) } else { Fault::None });
        assert!(sent(&server) < Duration::from_secs(40));
        assert_eq!(server.requests(), 2, "{:?}", server.log());
    }
}
