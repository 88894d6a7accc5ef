"""The core types that are persisted (seed `000`): frozen values, no I/O."""
