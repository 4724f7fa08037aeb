//! Whether there are credentials at all, before anything waits for a store.
//!
//! Without any in the environment and in files, a cloud's metadata server is asked. Where there is none, it would be asked as long as a store is: minutes without a word.

pub(crate) mod aws_files;

use std::fmt::Debug;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use object_store::{ClientOptions, CredentialProvider, RetryConfig};

use crate::location::{Location, Scheme};
use crate::reason::one_line;
use crate::{Error, Result};

/// How long a metadata server may take to answer: it is on the same machine, but that of a new container begins later than its program.
const DEADLINE: Duration = Duration::from_secs(10);

/// How long one address of it is asked, of the two that it may have.
const ADDRESS_DEADLINE: Duration = Duration::from_secs(4);

/// Schemes whose metadata server has answered this process.
static ANSWERED: Mutex<Vec<Scheme>> = Mutex::new(Vec::new());

/// Where Google's programs look for credentials, in the home folder.
const GOOGLE_DEFAULT: &str = ".config/gcloud/application_default_credentials.json";

/// Whether the environment or a file has credentials, or says that none are needed, so that no metadata server is asked.
pub fn are_credentials_set(scheme: Scheme) -> bool {
    let set = |name: &&'static str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match scheme {
        Scheme::S3 => {
            let names = [
                "AWS_ACCESS_KEY_ID",
                "AWS_WEB_IDENTITY_TOKEN_FILE",
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                "AWS_CONTAINER_CREDENTIALS_FULL_URI",
                "AWS_SKIP_SIGNATURE",
            ];
            names.iter().any(set) || aws_files::have_keys()
        }
        Scheme::Gs => {
            let names = [
                "GOOGLE_APPLICATION_CREDENTIALS",
                "GOOGLE_SERVICE_ACCOUNT",
                "GOOGLE_SERVICE_ACCOUNT_PATH",
                "GOOGLE_SERVICE_ACCOUNT_KEY",
                "GOOGLE_SKIP_SIGNATURE",
            ];
            let default = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(GOOGLE_DEFAULT));
            names.iter().any(set) || default.is_some_and(|file| file.is_file())
        }
        Scheme::Http | Scheme::File => true,
    }
}

/// Whether a metadata server must be asked before the store is used.
pub(crate) fn are_unknown(scheme: Scheme) -> bool {
    !are_credentials_set(scheme) && !answered().contains(&scheme)
}

/// The options and retries of a store that only asks for credentials.
pub(crate) fn brief() -> (ClientOptions, RetryConfig) {
    let options = ClientOptions::new().with_timeout(ADDRESS_DEADLINE).with_connect_timeout(ADDRESS_DEADLINE);
    let retry =
        RetryConfig { max_retries: usize::MAX, retry_timeout: ADDRESS_DEADLINE, ..RetryConfig::default() };
    (options, retry)
}

/// Asks for credentials once.
///
/// # Errors
/// [`Error::Failed`], which says where credentials were looked for.
pub(crate) async fn ask<C: Debug>(
    location: &Location,
    provider: &dyn CredentialProvider<Credential = C>,
) -> Result<()> {
    let why = match tokio::time::timeout(DEADLINE, provider.get_credential()).await {
        Ok(Ok(_)) => {
            answered().push(location.scheme());
            return Ok(());
        }
        Ok(Err(error)) => one_line(&error),
        Err(_) => format!("no answer within {} s", DEADLINE.as_secs()),
    };
    let looked = match location.scheme() {
        Scheme::S3 => format!(
            "there is no AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE or AWS_CONTAINER_CREDENTIALS_… in the environment, no aws_access_key_id of the profile {} \
             (AWS_PROFILE) in ~/.aws/credentials or ~/.aws/config, and the metadata server of AWS's machines gives none",
            aws_files::profile_name()
        ),
        _ => format!(
            "there is no GOOGLE_APPLICATION_CREDENTIALS or GOOGLE_SERVICE_ACCOUNT in the environment, no ~/{GOOGLE_DEFAULT} (gcloud auth application-default login), \
             and the metadata server of Google's machines gives none"
        ),
    };
    let message = format!("{looked} ({why})");
    Err(Error::Failed {
        operation: "find credentials for",
        url: location.root().to_owned(),
        message,
        may_pass: false,
    })
}

fn answered() -> std::sync::MutexGuard<'static, Vec<Scheme>> {
    // What was pushed is whole, whatever panicked.
    ANSWERED.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
