//! Holds the programs in this folder together; there is nothing to import.
