"""Every formula of dplan, once: time, memory, transfers, schedules."""
