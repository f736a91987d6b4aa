//! Where the store is: as the launcher says, unless our own variables say otherwise.

use std::fmt::Display;
use std::net::TcpListener;

use super::vars::Vars;
use crate::error::{Error, ErrorKind, Result};

/// Where rank 0 hosts the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Store {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) token: String,
    /// Whether rank 0's standard input is the listener.
    pub(super) inherited: bool,
}

impl Store {
    /// What the launcher said, with our own variables before it.
    pub(super) fn read(
        vars: &mut Vars,
        host: Option<String>,
        port: Option<u16>,
        token: Option<String>,
    ) -> Option<Self> {
        let ours = vars.optional("COLLECTIVES_STORE_PORT", "a port");
        let our_token = vars.optional("COLLECTIVES_STORE_TOKEN", "a token");
        let inherited = inherited(vars);
        let port = ours.or(port);
        if port == Some(0) {
            vars.fault("port 0 is no port that ranks could meet on".to_owned());
        }
        Some(Self {
            host: host?,
            port: port?,
            token: our_token.or(token).unwrap_or_default(),
            inherited,
        })
    }
}

fn inherited(vars: &mut Vars) -> bool {
    let listener: Option<String> = vars.optional("COLLECTIVES_STORE_LISTENER", "a listener");
    match listener.as_deref() {
        None | Some("") => false,
        Some("stdin") => true,
        Some(other) => {
            let other = other.escape_debug();
            let fault = format!("COLLECTIVES_STORE_LISTENER={other} is not `stdin`");
            vars.fault(fault);
            false
        }
    }
}

/// The listening socket that a launcher gave to this process as its standard input.
pub(super) fn listener_on_stdin() -> Result<TcpListener> {
    let refused = |error: &dyn Display| {
        let text = format!("standard input is not the store's listener: {error}");
        Error::new(ErrorKind::System(text))
    };
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;

        let stdin = std::io::stdin();
        let ours = stdin.as_fd().try_clone_to_owned();
        let listener = TcpListener::from(ours.map_err(|error| refused(&error))?);
        // Any other descriptor has no such address.
        listener.local_addr().map_err(|error| refused(&error))?;
        Ok(listener)
    }
    #[cfg(not(unix))]
    Err(refused(&"this system cannot pass it"))
}
