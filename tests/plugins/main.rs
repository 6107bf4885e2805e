//! The plugin API as an author of policies uses it: nothing but public names, no feature needed.

mod builtin;
mod contract;
mod failures;
mod host;
mod registry;
mod shadow;
mod soft_pin;
mod support;
