//! `brigade watch`

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use brigade::{UsageError, exit};
use brigade_runs::{Access, Server};
use clap::Args;

use crate::output::print;

pub const EXAMPLES: &str = "\
Examples:
  brigade watch runs/gpt-tiny-1                      the page of a run, updated as it runs
  brigade watch runs                                 all runs: a table, and one chart
  brigade watch runs --host 0.0.0.0 --token SECRET   from other machines

With --token, the page is at http://MACHINE:6060/?token=SECRET.";

/// Characters of a token that need no escaping in a URL.
const OF_TOKENS: &str = "letters, digits, `-`, `.` and `_`";

#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Folder of a run, or of several runs.
    #[arg(value_name = "RUN_OR_FOLDER", default_value = "runs")]
    folder: PathBuf,
    /// Port to listen on; 0 takes any free one.
    #[arg(long, value_name = "PORT", default_value_t = 6060)]
    port: u16,
    /// Address to listen on. Any but one of the loopback device needs --token.
    #[arg(long, value_name = "ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    host: IpAddr,
    /// What a browser must give to see the pages: letters, digits, `-`, `.` and `_`.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
}

pub fn run(args: &WatchArgs) -> anyhow::Result<ExitCode> {
    let access = access(args).map_err(UsageError)?;
    let server = Server::new(&args.folder, access).map_err(|error| UsageError(error.into()))?;
    let listener = TcpListener::bind((args.host, args.port)).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => anyhow::anyhow!(
            "--port {} is in use on {}; give another one, or --port 0 for any free one",
            args.port,
            args.host
        ),
        _ => anyhow::anyhow!("--host {} --port {}: {error}", args.host, args.port),
    })?;
    let address = listener.local_addr().context("the address of the server")?;
    let query = args.token.as_ref().map_or_else(String::new, |token| format!("?token={token}"));
    print(&format!("http://{address}/{query} follows {}; Ctrl-C ends it\n", args.folder.display()))?;
    server.run(listener)?;
    Ok(ExitCode::from(exit::DONE))
}

fn access(args: &WatchArgs) -> anyhow::Result<Access> {
    let is_plain =
        |token: &str| token.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    match &args.token {
        Some(token) if token.is_empty() || !is_plain(token) => bail!("--token must consist of {OF_TOKENS}"),
        Some(token) => Ok(Access::Token(token.clone())),
        None if args.host.is_loopback() => Ok(Access::Loopback),
        None => bail!(
            "--host {} lets other machines see the runs; give --token, which they must then give too, or --host \
            127.0.0.1",
            args.host
        ),
    }
}
