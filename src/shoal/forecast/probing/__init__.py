"""The probe's processes: what they are told (task, without torch) and what each does (everything else, with torch)."""
