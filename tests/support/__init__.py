"""What tests of several levels share: a volume that can be mounted, killed and mounted again."""
