//! Values that cross the boundary. None is a Rust enum: an unknown value must stay a value.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

macro_rules! integers {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $value:expr;)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub c_int);

        impl $name {
            $($(#[$vdoc])* pub const $variant: Self = Self($value);)+

            /// The name of the value, if it is one this crate knows.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$variant => Some(stringify!($variant)),)+
                    _ => None,
                }
            }
        }
    };
}

integers! {
    /// `ncclResult_t`: what a call returned.
    Code {
        /// It worked.
        SUCCESS = 0;
        /// A CUDA call failed.
        UNHANDLED_CUDA_ERROR = 1;
        /// A call to the system failed.
        SYSTEM_ERROR = 2;
        /// A bug, or memory corruption.
        INTERNAL_ERROR = 3;
        /// An argument has an invalid value.
        INVALID_ARGUMENT = 4;
        /// The call is not allowed here.
        INVALID_USAGE = 5;
        /// Another rank or the network failed.
        REMOTE_ERROR = 6;
        /// A non-blocking call goes on.
        IN_PROGRESS = 7;
        /// A deadline passed; since 2.30.3.
        TIMEOUT = 8;
    }
}

integers! {
    /// `ncclDataType_t`: the type of one element.
    DataType {
        /// Signed 8-bit integer.
        INT8 = 0;
        /// Unsigned 8-bit integer.
        UINT8 = 1;
        /// Signed 32-bit integer.
        INT32 = 2;
        /// Unsigned 32-bit integer.
        UINT32 = 3;
        /// Signed 64-bit integer.
        INT64 = 4;
        /// Unsigned 64-bit integer.
        UINT64 = 5;
        /// IEEE 754 binary16.
        FLOAT16 = 6;
        /// IEEE 754 binary32.
        FLOAT32 = 7;
        /// IEEE 754 binary64.
        FLOAT64 = 8;
        /// bfloat16.
        BFLOAT16 = 9;
        /// 8-bit float, 4 exponent bits; since 2.24.
        FLOAT8_E4M3 = 10;
        /// 8-bit float, 5 exponent bits; since 2.24.
        FLOAT8_E5M2 = 11;
    }
}

integers! {
    /// `ncclRedOp_t`: a reduction. Values from 5 on are made by `ncclRedOpCreatePreMulSum`.
    RedOp {
        /// The sum.
        SUM = 0;
        /// The product.
        PROD = 1;
        /// The largest element.
        MAX = 2;
        /// The smallest element.
        MIN = 3;
        /// The mean.
        AVG = 4;
    }
}

integers! {
    /// `ncclScalarResidence_t`: where the scalar of a reduction lies.
    ScalarResidence {
        /// In memory of the device, read while the collective runs.
        DEVICE = 0;
        /// In host memory, read at the call.
        HOST_IMMEDIATE = 1;
    }
}

integers! {
    /// Flags of `ncclCommWindowRegister`.
    WindowFlags {
        /// None.
        DEFAULT = 0;
        /// Every rank passes equal offsets, so that symmetric kernels may be used.
        COLL_SYMMETRIC = 1;
    }
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub *mut c_void);

        impl $name {
            /// No object.
            pub const NULL: Self = Self(ptr::null_mut());

            /// Whether this is no object.
            #[must_use]
            pub fn is_null(self) -> bool {
                self.0.is_null()
            }
        }

        // SAFETY: A handle is a value; what may be done with it on which thread is part of the
        // contract of each call.
        unsafe impl Send for $name {}
        // SAFETY: As for `Send`.
        unsafe impl Sync for $name {}
    )+};
}

handles! {
    /// `ncclComm_t`.
    Comm;
    /// `ncclWindow_t`; a device pointer since 2.28, so never to be followed.
    Window;
    /// `cudaStream_t`.
    Stream;
}

/// `ncclUniqueId`: how ranks find each other; passed by value.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct UniqueId {
    internal: [c_char; 128],
}

impl UniqueId {
    /// Its length in bytes.
    pub const BYTES: usize = 128;

    /// The id with these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self {
            internal: bytes.map(u8::cast_signed),
        }
    }

    /// The bytes, to be sent to the other ranks. They contain an address and a secret.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.internal.map(c_char::cast_unsigned)
    }
}

impl std::fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UniqueId")
    }
}

/// `ncclTeam_t`: ranks at equal distances of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Team {
    /// Ranks in the team.
    pub ranks: c_int,
    /// This rank's position in it.
    pub rank: c_int,
    /// The distance of two neighbours in ranks of the communicator.
    pub stride: c_int,
}

const _: () = assert!(size_of::<UniqueId>() == UniqueId::BYTES && size_of::<Team>() == 12);
