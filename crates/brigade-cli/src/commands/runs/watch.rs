//! `brigade watch`

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use brigade::{UsageError, exit};
use brigade_runs::{Access, Server};
use clap::Args;

use crate::output::print;

pub const EXAMPLES: &str = "\
Examples:
  brigade watch runs/gpt-tiny-1                      the page of a run, updated as it runs
  brigade watch runs                                 all runs: a table, and one chart
  brigade watch runs --host 0.0.0.0 --token-file FILE   from other machines

With a token, the page is at http://MACHINE:6060/?token=TOKEN.";

/// How long a token may be.
const LENGTHS: RangeInclusive<usize> = 16..=256;

#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Folder of a run, or of several runs.
    #[arg(value_name = "RUN_OR_FOLDER", default_value = "runs")]
    folder: PathBuf,
    /// Port to listen on; 0 takes any free one.
    #[arg(long, value_name = "PORT", default_value_t = 6060)]
    port: u16,
    /// Address to listen on. Any but one of the loopback device needs --token-file or --token.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// File with what a browser must give to see the pages: 16 to 256 visible ASCII characters.
    #[arg(long, value_name = "PATH")]
    token_file: Option<PathBuf>,
    /// The same on the command line, which others on this machine can see.
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
}

pub fn run(args: &WatchArgs) -> anyhow::Result<ExitCode> {
    let access = access(args).map_err(UsageError)?;
    let server = Server::new(&args.folder, access).map_err(|error| UsageError(error.into()))?;
    let listener = TcpListener::bind((args.host, args.port)).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => anyhow!(
            "--port {} is in use on {}; give another one, or --port 0 for any free one",
            args.port,
            args.host
        ),
        _ => anyhow!("--host {} --port {}: {error}", args.host, args.port),
    })?;
    let address = listener.local_addr().context("the address of the server")?;
    let query = match (&args.token, &args.token_file) {
        (Some(token), _) => {
            brigade::print_stderr(
                "brigade: others on this machine can see --token in the list of processes; --token-file hides it",
            );
            format!("?token={}", encoded(token))
        }
        (None, Some(_)) => "?token=…".into(),
        (None, None) => String::new(),
    };
    print(&format!("http://{address}/{query} follows {}; Ctrl-C ends it\n", args.folder.display()))?;
    server.run(listener)?;
    Ok(ExitCode::from(exit::DONE))
}

fn access(args: &WatchArgs) -> anyhow::Result<Access> {
    if let Some(token) = &args.token {
        return checked("--token", token);
    }
    if let Some(path) = &args.token_file {
        let option = format!("--token-file {}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| anyhow!("{option}: {error}"))?;
        return checked(&option, text.trim_end_matches(['\r', '\n']));
    }
    if args.host.is_loopback() {
        return Ok(Access::Loopback);
    }
    bail!(
        "--host {} lets other machines see the runs; give --token-file with a secret, which they must then give too, or --host \
        127.0.0.1",
        args.host
    )
}

fn checked(option: &str, token: &str) -> anyhow::Result<Access> {
    let found = match token.len() {
        _ if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
            "a blank or a character that is not ASCII".into()
        }
        length if LENGTHS.contains(&length) => return Ok(Access::Token(token.to_owned())),
        length => format!("{length} characters"),
    };
    bail!("{option} is not valid: the token has {found}; it must have 16 to 256 visible ASCII characters")
}

/// A token as a URL has it.
fn encoded(token: &str) -> String {
    let letter = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    token.bytes().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_long_and_has_no_blanks() {
        let long = "x".repeat(257);
        for wrong in ["", "short", "with a blank in its middle", "ümlaut-ümlaut-ümlaut", &long] {
            let message = checked("--token", wrong).unwrap_err().to_string();
            assert!(message.contains("16 to 256 visible ASCII characters"), "{message}");
            assert!(wrong.is_empty() || !message.contains(wrong), "{message}");
        }
        let right = "0123456789abc&%?";
        assert_eq!(checked("--token", right).unwrap(), Access::Token(right.into()));
        assert_eq!(encoded(right), "0123456789abc%26%25%3F");
    }
}
