"""The rules, one file each; the file is named like the rule."""
