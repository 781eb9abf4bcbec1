//! Presentation of answers: content negotiation, entity tags, and errors as documents or pages.

pub(crate) mod accept;
pub(crate) mod answer_properties;
pub(crate) mod conditional;
pub(crate) mod errors;
pub(crate) mod problem_pages;
pub(crate) mod tag_basis;
