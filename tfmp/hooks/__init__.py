"""Where tfmp meets TensorFlow and Keras. Only this room keeps state, and only this room catches broadly: whatever goes wrong, the user's program runs."""
