//! The words of generated prompts: a help desk's. Each is one token.

/// 96 words.
pub(super) const WORDS: [&str; 96] = [
    "account", "address", "agent", "amount", "answer", "apply", "balance", "before", "billing", "book",
    "cancel", "card", "case", "change", "charge", "check", "claim", "close", "confirm", "contact", "copy",
    "credit", "customer", "date", "default", "delay", "deliver", "detail", "discount", "email", "escalate",
    "exchange", "expire", "explain", "field", "file", "form", "friendly", "history", "include", "internal",
    "invoice", "issue", "item", "keep", "label", "language", "limit", "link", "list", "local", "manager",
    "member", "message", "method", "month", "never", "notice", "number", "offer", "option", "order", "owner",
    "package", "parcel", "partner", "payment", "period", "phone", "plan", "policy", "polite", "price",
    "privacy", "product", "proof", "queue", "quote", "reason", "receipt", "record", "refund", "region",
    "report", "request", "return", "review", "schedule", "service", "ship", "stock", "summary", "ticket",
    "transfer", "update", "voucher",
];
