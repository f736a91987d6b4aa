//! Where ranks meet, as the launcher or variables of ours say.

use std::path::PathBuf;

use super::store::Store;
use super::vars::Vars;
use crate::error::Error;

/// Where the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meeting {
    Tcp(Store),
    File(PathBuf),
    /// Nobody says.
    Unsaid,
}

impl Meeting {
    /// The file, where one is given; it comes before everything else.
    pub(super) fn file(vars: &mut Vars) -> Option<Self> {
        let path: Option<PathBuf> = vars.optional("COLLECTIVES_STORE_FILE", "a path");
        let path = path?;
        if path.as_os_str().is_empty() {
            vars.fault("COLLECTIVES_STORE_FILE is empty".to_owned());
        }
        Some(Self::File(path))
    }

    /// Whether variables say where to meet, whatever the launcher knows.
    pub(super) fn is_told(vars: &Vars) -> bool {
        let host = ["COLLECTIVES_STORE_HOST", "MASTER_ADDR"];
        vars.has("COLLECTIVES_STORE_FILE") || host.iter().any(|name| vars.has(name))
    }

    /// What users pass through any launcher, and otherwise what the launcher knows itself.
    pub(super) fn read(
        vars: &mut Vars,
        host: Option<String>,
        port: Option<u16>,
        token: Option<String>,
    ) -> Option<Self> {
        if let Some(file) = Self::file(vars) {
            return Some(file);
        }
        let told: Option<String> = vars.optional("COLLECTIVES_STORE_HOST", "a host");
        let named: Option<String> = vars.optional("MASTER_ADDR", "a host");
        let port = vars.optional("MASTER_PORT", "a port").or(port);
        let has_port = port.is_some() || vars.has("COLLECTIVES_STORE_PORT");
        match told.or(named).or(host) {
            Some(host) if has_port => Store::read(vars, Some(host), port, token).map(Self::Tcp),
            None if !has_port => Some(Self::Unsaid),
            Some(_) => {
                vars.fault("there is a host to meet at, and no port: MASTER_PORT or COLLECTIVES_STORE_PORT".to_owned());
                None
            }
            None => {
                vars.fault("there is a port to meet at, and no host: MASTER_ADDR or COLLECTIVES_STORE_HOST".to_owned());
                None
            }
        }
    }
}

/// The error of who wants to meet, and nobody says where.
pub(super) fn unsaid(launcher: &str) -> Error {
    Error::config(format!(
        "{launcher} says who the ranks are, and not where they meet: set COLLECTIVES_STORE_FILE, or \
         MASTER_ADDR and MASTER_PORT (with mpirun, `-x NAME=value`), or meet over MPI"
    ))
}
