//! The settings file of Anthropic's sandbox-runtime (`srt`), as far as it can be honoured.
