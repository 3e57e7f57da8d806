"""What makes pixels of JPEGs; one file per decoder."""
