//! The library's errors as ours.

use collectives_core::error::{Error, ErrorKind, Unsupported};

/// The backend's name.
pub(crate) const BACKEND: &str = "nccl";

/// What the NCCL library said, as an error of this backend.
#[cold]
pub(crate) fn nccl_error(error: nccl_sys::Error) -> Error {
    let mapped = match &error {
        nccl_sys::Error::NotFound { .. } | nccl_sys::Error::NoVersion { .. } => {
            Error::unsupported(Unsupported::Operation(error.to_string()))
        }
        nccl_sys::Error::MissingSymbol { .. } => {
            Error::unsupported(Unsupported::Version(error.to_string()))
        }
        nccl_sys::Error::Failed { name, code, text } => Error::new(ErrorKind::Native {
            library: BACKEND,
            code: i64::from(code.0),
            text: format!("{name}: {text}"),
        }),
        _ => Error::unsupported(Unsupported::Operation(error.to_string())),
    };
    mapped.on_backend(BACKEND)
}

#[cfg(test)]
mod tests {
    use nccl_sys::{Code, Version};

    use super::*;

    #[test]
    fn codes_that_nobody_knows_arrive_unchanged() {
        let error = nccl_error(nccl_sys::Error::Failed {
            name: "ncclAllReduce",
            code: Code(99),
            text: "?".to_owned(),
        });
        assert!(matches!(error.kind(), ErrorKind::Native { code: 99, .. }));
        assert!(error.poisons());
    }

    #[test]
    fn a_missing_symbol_names_the_version() {
        let error = nccl_error(nccl_sys::Error::MissingSymbol {
            name: "ncclCommWindowRegister",
            version: Version::new(2, 26, 2),
        });
        assert!(
            error
                .to_string()
                .contains("NCCL 2.26.2 has no ncclCommWindowRegister")
        );
        assert!(!error.poisons());
    }
}
